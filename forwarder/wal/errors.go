package wal

import "errors"

var (
	// ErrWALLevel says that the server writes no log that can be decoded. Set wal_level =
	// logical in its configuration, and restart it.
	ErrWALLevel = errors.New("wal: wal_level must be logical: ALTER SYSTEM SET wal_level = 'logical', and restart the server")
	// ErrNoReplicationRight says that the role may not read the log; the error that wraps it
	// has the command that lets it.
	ErrNoReplicationRight = errors.New("wal: the role may not replicate")
	// ErrStandby says that the server is a standby: ReplicationDSN has to lead to the primary.
	ErrStandby = errors.New("wal: the server is a standby, the slot must be on the primary")
	// ErrNoFreeSlot says that all replication slots are in use: raise max_replication_slots
	// (it takes a restart), or drop one that nobody needs.
	ErrNoFreeSlot = errors.New("wal: no replication slot is free: raise max_replication_slots, or drop a slot that nobody needs")
	// ErrNoSlot says that the slot is missing, since somebody has dropped it after Prepare, or still being
	// made.
	ErrNoSlot = errors.New("wal: the replication slot is missing, or still being made")
	// ErrForeignSlot says that a slot of that name exists for something else, and was not
	// touched: choose another name.
	ErrForeignSlot = errors.New("wal: a replication slot of that name exists and is not ours")
	// ErrNoPublication says that the outbox table's inserts are not published, and the role
	// may not mend that; the error that wraps it has the command that does.
	ErrNoPublication = errors.New("wal: the outbox table's inserts are not published")
	// ErrUnboundedWAL says that nothing bounds what a slot keeps of the write-ahead log: set
	// max_slot_wal_keep_size to what the disk can spare, or Config.AcceptUnboundedWAL.
	ErrUnboundedWAL = errors.New("wal: max_slot_wal_keep_size is -1, so that a slot that nobody reads fills the disk: " +
		"ALTER SYSTEM SET max_slot_wal_keep_size = '10GB', and reload; or set AcceptUnboundedWAL")
	// ErrNoSlotsRight says that the role of the ReplicationDSN may not keep what it has to know of
	// the slot; the error that wraps it has the command that lets it.
	ErrNoSlotsRight = errors.New("wal: the role may not write down what is settled")
	// ErrNoSignalRight says that the role of the ReplicationDSN may not end the reader that has the
	// slot, another role's: have all replicas use one role, or GRANT pg_signal_backend TO it.
	ErrNoSignalRight = errors.New("wal: the role may not end the reader of the slot, which is another role's: " +
		"use one role in all replicas, or GRANT pg_signal_backend TO it")
	// ErrOtherDatabase says that the ReplicationDSN leads to another database than the one that the
	// forwarder has.
	ErrOtherDatabase = errors.New("wal: ReplicationDSN leads to another database than the forwarder's")
	// ErrSuspended says that the log is not read, since the slot kept more of it than was allowed, or
	// Postgres has given the slot up; the error that wraps it says why. The table is read
	// until Source.Resume is called.
	ErrSuspended = errors.New("wal: the slot is suspended, until Resume is called")
	// ErrSchemaDrift says that the outbox table is not as it was: a column that is needed is
	// missing, or of another type. Nothing was skipped: mend the table, and the stream goes
	// on.
	ErrSchemaDrift = errors.New("wal: the outbox table has changed")
	// ErrSilent says that the server has sent nothing for long.
	ErrSilent = errors.New("wal: the server is silent")
)

// SQLSTATEs (Postgres manual, "PostgreSQL Error Codes").
const (
	insufficientPrivilege = "42501"
	duplicateObject       = "42710"
	uniqueViolation       = "23505"
	configurationLimit    = "53400"
	objectInUse           = "55006"
	undefinedObject       = "42704"
	internalError         = "XX000"
)

func hasSQLState(err error, code string) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == code
}

// Package wal has a forwarder take new rows from the write-ahead log, through a logical replication
// slot, in place of looking for them in the table:
//
//	source, err := wal.New(wal.Config{ReplicationDSN: dsn}, logger)
//	f, err := forwarder.New(db, publisher, forwarder.Config{Source: source}, logger)
//
// Rows come in the order of commits, a moment after the commit, and nothing is polled. The rows
// stay in the table until they are settled, as without it, and whatever the slot may lose is found
// there: each time that the stream begins, the table is drained first.
//
// # What it needs
//
// A direct connection (no pooler) to the primary, of a role with REPLICATION; wal_level=logical; and
// a publication of the table's inserts, which is made if the role may.
//
// # What to know
//
// A slot keeps the write-ahead log from the position on that was confirmed last, whatever it takes
// of the disk, also while no forwarder runs. So the forwarder refuses to start with max_slot_wal_keep_size = -1,
// unless Config.AcceptUnboundedWAL says that somebody watches it. A slot that Postgres has given up
// (wal_status is lost) is made anew: nothing is lost by that, since the table is drained.
package wal

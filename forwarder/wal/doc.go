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
// Direct connections (no pooler) to the primary, two for each replica and one more for the one that reads the
// slot; a role with REPLICATION and with SELECT, INSERT and UPDATE on the table outbox_slots, the same for all
// replicas, or with pg_signal_backend; wal_level=logical; and a publication of the table's inserts, which is made
// if the role may.
//
// # What to know
//
// A slot keeps the write-ahead log from the position on that was confirmed last, whatever it takes
// of the disk. Two things bound that:
//
//   - While a forwarder runs, Config.MaxRetainedWAL. Each replica measures every second what the slot keeps,
//     whichever reads it. Beyond the budget, one suspends the slot: it ends whoever reads it, and drops it. So the
//     slot keeps at most MaxRetainedWAL, what is written in a second or so, and a segment. The table is
//     read then, as without a Source, and nothing is lost or sent out of order. Config.OnAlarm is told, and
//     Source.Status. Source.Resume has the log read again.
//   - While none runs, only the server's max_slot_wal_keep_size. So the forwarder refuses to start where that is -1,
//     unless Config.AcceptUnboundedWAL says that somebody watches it. A slot that Postgres has given up
//     (wal_status is lost) is suspended too.
//
// The table outbox_slots has what is known of the slot: the server's system identifier and timeline, up to where
// everything is settled (written down before the slot confirms it), and whether it is suspended. A slot
// that was dropped, made anew, moved on by somebody else, or that is of another server after a failover or a
// restore, shows by that. It is logged; what such a slot has missed is in the table, which is drained
// before the stream goes on. On Postgres 17 and newer the slot is one that standbys may keep (failover).
package wal

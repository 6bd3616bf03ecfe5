package wal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

func TestServerThatDoesNotDo(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, schema.Postgres{Schema: "own"})
	source := newSource(t, server.DB)

	server.Set(t, `wal_level = 'replica'`)
	err := source.Check(t.Context(), server.DB.DB)
	require.ErrorIs(t, err, wal.ErrWALLevel)
	require.ErrorIs(t, err, forwarder.ErrUnfitSource)
	require.ErrorContains(t, err, "it is replica")

	server.Set(t, `wal_level = 'logical'`, `max_replication_slots = 1`)
	exec(t, server, `SELECT pg_create_physical_replication_slot('another')`)
	require.ErrorIs(t, source.Prepare(t.Context()), wal.ErrNoFreeSlot)
	exec(t, server, `SELECT pg_drop_replication_slot('another')`)
	require.NoError(t, source.Prepare(t.Context()))
}

// Postgres gives up a slot that keeps too much of the log. What was in the log is in the table.
func TestSlotThatPostgresHasGivenUp(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, schema.Postgres{Schema: "own"})
	server.Set(t, `max_slot_wal_keep_size = '1MB'`)
	db := server.DB
	var b broker
	source := newSource(t, db, func(cfg *wal.Config) { cfg.AcceptUnboundedWAL = false })
	stop := start(t, db, &b, source)
	requireStreaming(t, db)
	insertKeyed(t, db, db, "orders", "a", "a-1")
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	stop()

	insertKeyed(t, db, db, "orders", "a", "a-2")
	for range 3 {
		exec(t, db, `SELECT pg_logical_emit_message(false, 'filler', 'x')`)
		exec(t, db, `SELECT pg_switch_wal()`)
	}
	exec(t, db, `CHECKPOINT`)
	require.Equal(t, 1, count(t, db, `pg_replication_slots WHERE wal_status = 'lost'`))

	start(t, db, &b, source)
	eventually(t, func() bool { return source.Status().Suspended != "" })
	require.Contains(t, source.Status().Suspended, "max_slot_wal_keep_size")
	insertKeyed(t, db, db, "orders", "a", "a-3")
	eventually(t, func() bool { return len(b.of("a")) == 3 })
	require.Zero(t, count(t, db, `pg_replication_slots`))

	require.NoError(t, source.Resume(t.Context()))
	requireStreaming(t, db)
	insertKeyed(t, db, db, "orders", "a", "a-4")
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	require.Equal(t, ids("a", 4), b.of("a"))
}

package wal_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// held is a broker that keeps what it is given, until it is let go.
type held struct {
	broker

	took  chan struct{}
	letGo chan struct{}
}

func newHeld() *held { return &held{took: make(chan struct{}, 100), letGo: make(chan struct{})} }

func (h *held) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	h.took <- struct{}{}
	select {
	case <-h.letGo:
	case <-ctx.Done():
	}
	return h.broker.PublishBatch(ctx, msgs)
}

// neighbours are a table beside the outbox, and one of another database.
func neighbours(t *testing.T, db *testdb.DB) map[string]neighbour {
	t.Helper()
	return map[string]neighbour{
		"a table":    newNeighbour(t, db, `"`+db.Schema.Schema+`".other`),
		"a database": newNeighbour(t, testdb.NewDatabase(t), `public.other`),
	}
}

// An outbox that nobody writes to keeps no log that others write.
func TestSlotOfAnIdleForwarderGoesOn(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	for name, other := range neighbours(t, db) {
		for range 3 {
			other.write(t)
			end := position(t, db)
			require.Eventually(t, func() bool { return confirmedBehind(t, db, db.Schema.Schema, end) }, patience, 10*time.Millisecond, name)
		}
	}
	require.Equal(t, 1, b.all())
}

// Whatever others write, and however long it takes, nothing is confirmed past a message that is in
// flight: a server that dies now has to send it again.
func TestNothingIsConfirmedPastWhatIsInFlight(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	h := newHeld()
	source := newSource(t, db)
	stop := run(t, db, h, forwarder.Config{Source: source, PublishTimeout: 10 * time.Minute})
	others := neighbours(t, db)
	requireAllConfirmed(t, db)
	insert(t, db, db, "in flight")
	<-h.took
	committed := position(t, db)
	for range 4 {
		for _, other := range others {
			other.write(t)
		}
		insertKeyed(t, db, db, "orders", "in flight", "behind it")
		requireReports(t, db, 2)
		require.False(t, confirmedBehind(t, db, db.Schema.Schema, committed))
	}
	exec(t, db, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, db.Schema.Schema)
	require.False(t, confirmedBehind(t, db, db.Schema.Schema, committed))
	close(h.letGo)
	requireDrained(t, db)
	requireAllConfirmed(t, db)
	require.Equal(t, []string{"in flight", "behind it", "behind it", "behind it", "behind it"}, h.of("in flight"))
	stop()
}

// A transaction of others that is open for long, and large, holds up nothing that commits meanwhile.
func TestLongTransactionOfOthersHoldsUpNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	start(t, db, &b, newSource(t, db))
	other := newNeighbour(t, db, `"`+db.Schema.Schema+`".other`)
	requireStreaming(t, db)
	long := begin(t, db)
	insertKeyed(t, db, long, "orders", "long", "long")
	exec(t, long, `INSERT INTO `+other.table+` SELECT g.n, repeat('x', 1000) FROM generate_series(1, 20000) AS g (n)`)
	insertKeyed(t, db, db, "orders", "a", ids("a", 20)...)
	end := position(t, db)
	eventually(t, func() bool { return len(b.of("a")) == 20 && confirmedBehind(t, db, db.Schema.Schema, end) })
	require.NoError(t, long.Commit())
	eventually(t, func() bool { return len(b.of("long")) == 1 })
}

package wal_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// alarms are what a Source has said.
type alarms struct {
	mu   sync.Mutex
	seen []wal.Status
}

func (a *alarms) note(s wal.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, s)
}

func (a *alarms) all() []wal.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]wal.Status{}, a.seen...)
}

const budget = 32 << 20

func guarded(a *alarms) option {
	return func(cfg *wal.Config) { cfg.MaxRetainedWAL, cfg.OnAlarm = budget, a.note }
}

// fill writes so many MiB of log that has nothing to do with the outbox.
func fill(t *testing.T, db *testdb.DB, megabytes int) {
	t.Helper()
	for range megabytes {
		exec(t, db, `SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20))`)
	}
}

// A broker that stands still has the slot keep the log. It is given up before that is too much, and all
// is sent from the table; the log is read again when an operator says so.
func TestSlotDoesNotFillTheDisk(t *testing.T) {
	t.Parallel()
	db := testdb.StartServer(t, schema.Postgres{Schema: "own"}).DB // what others write counts as well
	slot := db.Schema.Schema
	var b broker
	var active, standby alarms
	source, second := newSource(t, db, guarded(&active)), newSource(t, db, guarded(&standby))
	start(t, db, &b, source)
	requireStreaming(t, db)
	start(t, db, &b, second)

	b.set(func() { b.gone = true })
	insertKeyed(t, db, db, "orders", "a", ids("a", 10)...)
	fill(t, db, budget>>20*3/4)
	eventually(t, func() bool { return len(active.all()) == 1 && len(standby.all()) == 1 })
	require.Equal(t, 1, count(t, db, `pg_replication_slots WHERE slot_name = '`+slot+`'`))
	most, written := int64(0), 0
	eventually(t, func() bool {
		fill(t, db, 1)
		written++
		most = max(most, source.Status().RetainedWAL, second.Status().RetainedWAL)
		return count(t, db, `pg_replication_slots WHERE slot_name = '`+slot+`'`) == 0
	})
	t.Logf("budget %d, at most seen %d, written %d MiB more", budget, most, written)
	eventually(t, func() bool { return len(active.all()) == 2 && len(standby.all()) == 2 })
	for _, seen := range [][]wal.Status{active.all(), standby.all()} {
		require.Empty(t, seen[0].Suspended)
		require.Greater(t, seen[0].RetainedWAL, int64(budget/2))
		require.Contains(t, seen[1].Suspended, "it kept")
		require.Equal(t, slot, seen[1].Slot)
	}

	insertKeyed(t, db, db, "orders", "a", "a-11")
	b.set(func() { b.gone = false })
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	require.Equal(t, ids("a", 11), b.of("a"))
	require.Zero(t, count(t, db, `pg_replication_slots WHERE slot_name = '`+slot+`'`))

	require.NoError(t, second.Resume(t.Context()))
	requireStreaming(t, db)
	insertKeyed(t, db, db, "orders", "a", "a-12")
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	require.Equal(t, ids("a", 12), b.of("a"))
	require.Empty(t, source.Status().Suspended)
}

// A slot that somebody made while nobody was to have one goes again.
func TestSuspendedSlotIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	slot := db.Schema.Schema
	source := newSource(t, db)
	open(t, source)
	exec(t, db, `UPDATE `+db.Schema.Slots()+` SET suspended_at = now(), suspended_because = 'by hand'`)
	require.ErrorIs(t, source.Prepare(t.Context()), wal.ErrSuspended)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		source.Watch(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	eventually(t, func() bool { return count(t, db, `pg_replication_slots WHERE slot_name = '`+slot+`'`) == 0 })
	eventually(t, func() bool { return source.Status().Suspended == "by hand" })
}

// What is settled is known before the slot confirms it, so that one which was made anew shows.
func TestSlotThatIsAnotherOne(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	slot := db.Schema.Schema
	var lines log
	db.Slot(t)
	logged := func() *wal.Source {
		s, err := wal.New(wal.Config{Schema: db.Schema, ReplicationDSN: db.DSN, Slot: slot, Publication: slot, AcceptUnboundedWAL: true}, &lines)
		require.NoError(t, err)
		return s
	}
	settleAll := func() {
		stream := open(t, logged())
		insert(t, db, db, "1")
		settled := next(t, stream, 1)[0].Position
		stream.Settled(settled)
		eventually(t, func() bool {
			return count(t, db, `pg_replication_slots AS s JOIN `+db.Schema.Slots()+fmt.Sprintf(` AS k ON k.slot = s.slot_name
				WHERE k.settled >= s.confirmed_flush_lsn AND s.confirmed_flush_lsn - '0/0' > %d`, settled.Commit)) == 1
		})
		closeStream(t, stream)
	}
	settleAll()
	settleAll()
	require.Empty(t, lines.reasons())

	exec(t, db, `SELECT pg_drop_replication_slot($1)`, slot)
	fill(t, db, 1)
	settleAll()
	require.Equal(t, []any{"the slot was made anew, or moved on"}, lines.reasons())

	fill(t, db, 1)
	exec(t, db, `SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())`, slot)
	settleAll()
	require.Len(t, lines.reasons(), 2)

	exec(t, db, `UPDATE `+db.Schema.Slots()+` SET timeline = timeline + 1`)
	settleAll()
	require.Equal(t, "the server was promoted or restored", lines.reasons()[2])

	exec(t, db, `UPDATE `+db.Schema.Slots()+` SET system_identifier = '1'`)
	settleAll()
	require.Equal(t, "the server is another one", lines.reasons()[3])
}

// A standby keeps the slot too, where the server can have it do so.
func TestSlotFailsOver(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	open(t, newSource(t, db))
	var is, can bool
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT coalesce((to_jsonb(s) ->> 'failover')::boolean, false),
		current_setting('server_version_num')::integer >= 170000
		FROM pg_replication_slots AS s WHERE slot_name = $1`, db.Schema.Schema).Scan(&is, &can))
	require.Equal(t, can, is)
}

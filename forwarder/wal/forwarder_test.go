package wal_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// broker keeps what it took, by key, in order. It refuses and misses what it is told to.
type broker struct {
	mu      sync.Mutex
	refused map[string]bool // ids
	away    map[string]bool // destinations
	gone    bool
	ids     map[string][]string
	took    int
}

func (b *broker) Publish(string, ...*message.Message) error {
	panic("the forwarder must use PublishBatch")
}
func (b *broker) Close() error { return nil }

func (b *broker) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	return forwarder.Waves(ctx, msgs, func(_ context.Context, wave []forwarder.Outgoing) []error {
		b.mu.Lock()
		defer b.mu.Unlock()
		results := make([]error, len(wave))
		for i, msg := range wave {
			results[i] = b.take(msg)
		}
		return results
	})
}

var errTest = errors.New("as the test wishes")

func (b *broker) take(msg forwarder.Outgoing) error {
	switch {
	case b.gone:
		return forwarder.Unavailable(errTest)
	case b.away[msg.Destination]:
		return forwarder.DestinationUnavailable(errTest)
	case b.refused[msg.Message.UUID]:
		return forwarder.Refused(errTest)
	}
	if b.ids == nil {
		b.ids = map[string][]string{}
	}
	b.ids[msg.PartitionKey] = append(b.ids[msg.PartitionKey], msg.Message.UUID)
	b.took++
	return nil
}

func (b *broker) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *broker) of(key string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.ids[key]...)
}

func (b *broker) all() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.took
}

// start runs a forwarder until the test ends, or stop is called.
func start(t *testing.T, db *testdb.DB, b *broker, source forwarder.Source) (stop func()) {
	t.Helper()
	return startWith(t, db, b, forwarder.Config{
		Source: source, BatchSize: 50, MaxAttempts: 3,
		PollInterval: 5 * time.Millisecond, RetryInitial: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond,
	})
}

func startWith(t *testing.T, db *testdb.DB, b *broker, cfg forwarder.Config) (stop func()) {
	t.Helper()
	cfg.Schema = db.Schema
	f, err := forwarder.New(db.DB, b, cfg, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// requireStreaming returns when the forwarder takes rows from the log, and none from the table any more:
// what was written since the slot was made is confirmed only then.
func requireStreaming(t *testing.T, db *testdb.DB) {
	t.Helper()
	eventually(t, func() bool {
		return count(t, db, `pg_replication_slots WHERE active AND confirmed_flush_lsn IS NOT NULL AND slot_name = '`+db.Schema.Schema+`'`) == 1
	})
	insertKeyed(t, db, db, "orders", "probe", "probe")
	end := position(t, db)
	eventually(t, func() bool { return confirmedBehind(t, db, db.Schema.Schema, end) })
}

func insertKeyed(t *testing.T, db *testdb.DB, to execer, destination, key string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		exec(t, to, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload) VALUES ($1, $2, $3, 'x')`, id, destination, key)
	}
}

func count(t *testing.T, db *testdb.DB, table string) (rows int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+table).Scan(&rows))
	return rows
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, 5*time.Millisecond)
}

// A slot waits for the transactions that write, however long they do; the forwarder does not.
func TestTableIsReadWhileTheSlotWaits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	long := begin(t, db)
	insertKeyed(t, db, long, "orders", "long", "long")
	start(t, db, &b, newSource(t, db))
	insertKeyed(t, db, db, "orders", "a", ids("a", 3)...)
	eventually(t, func() bool { return len(b.of("a")) == 3 })
	require.NoError(t, long.Commit())
	requireStreaming(t, db)
	eventually(t, func() bool { return len(b.of("long")) == 1 })
	require.Equal(t, 5, b.all())
}

// A replica that began to make the slot may be gone, and the server still be at it.
func TestTableIsReadWhileTheSlotOfAnotherWaits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	slot := db.Slot(t)
	long := begin(t, db)
	insertKeyed(t, db, long, "orders", "long", "long")
	made := make(chan error, 1)
	go func() {
		_, err := db.ExecContext(t.Context(), `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
		made <- err
	}()
	eventually(t, func() bool { return count(t, db, `pg_replication_slots WHERE active AND slot_name = '`+slot+`'`) == 1 })
	var b broker
	start(t, db, &b, newSource(t, db))
	insertKeyed(t, db, db, "orders", "a", ids("a", 3)...)
	eventually(t, func() bool { return len(b.of("a")) == 3 })
	require.Empty(t, made)
	require.NoError(t, long.Commit())
	require.NoError(t, <-made)
	requireStreaming(t, db)
	eventually(t, func() bool { return len(b.of("long")) == 1 })
}

// What was there before the slot, what comes meanwhile and what comes after: each once, and in order.
func TestForwarderOnTheWAL(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	insertKeyed(t, db, db, "orders", "a", ids("before", 200)...)
	stop := start(t, db, &b, newSource(t, db))
	insertKeyed(t, db, db, "orders", "a", ids("meanwhile", 200)...)
	eventually(t, func() bool { return b.all() == 400 })
	tx := begin(t, db)
	insertKeyed(t, db, tx, "orders", "a", ids("after", 200)...)
	insertKeyed(t, db, tx, "orders", "b", ids("b", 200)...)
	require.NoError(t, tx.Commit())
	end := position(t, db)
	eventually(t, func() bool { return b.all() == 800 && count(t, db, db.Schema.Outbox()) == 0 })
	eventually(t, func() bool { return confirmedBehind(t, db, db.Schema.Schema, end) })
	stop()
	require.Equal(t, append(append(ids("before", 200), ids("meanwhile", 200)...), ids("after", 200)...), b.of("a"))
	require.Equal(t, ids("b", 200), b.of("b"))
}

// A refused message waits in the table, and its unit behind it; the stream goes on, and the slot.
func TestRefusedMessageDoesNotStopTheStream(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	b := broker{refused: map[string]bool{"a-2": true, "b-1": true}}
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	insertKeyed(t, db, db, "orders", "a", ids("a", 4)...)
	insertKeyed(t, db, db, "orders", "b", ids("b", 2)...)
	insertKeyed(t, db, db, "orders", "c", ids("c", 3)...)
	end := position(t, db)
	eventually(t, func() bool { return len(b.of("c")) == 3 && confirmedBehind(t, db, db.Schema.Schema, end) })
	b.set(func() { delete(b.refused, "a-2") })
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	require.Subset(t, ids("a", 4), b.of("a"))
	require.Equal(t, []string{"b-2"}, b.of("b"))
	require.Equal(t, 1+4-len(b.of("a")), count(t, db, db.Schema.DeadLetters()))
	insertKeyed(t, db, db, "orders", "a", "a-5")
	eventually(t, func() bool { return len(b.of("a")) > 0 && b.of("a")[len(b.of("a"))-1] == "a-5" })
	require.IsIncreasing(t, b.of("a"))
}

// A destination that is away holds up neither the others nor the slot, also what was there before.
func TestDestinationThatIsAwayDoesNotStopTheStream(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	b := broker{away: map[string]bool{"away": true}}
	insertKeyed(t, db, db, "away", "a", ids("a-before", 100)...)
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	for n := range 100 {
		insertKeyed(t, db, db, "away", "a", fmt.Sprintf("a-after-%d", n+1))
		insertKeyed(t, db, db, "orders", "b", fmt.Sprintf("b-%d", n+1))
	}
	end := position(t, db)
	eventually(t, func() bool { return len(b.of("b")) == 100 && confirmedBehind(t, db, db.Schema.Schema, end) })
	require.Empty(t, b.of("a"))
	b.set(func() { b.away = nil })
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	require.Equal(t, append(ids("a-before", 100), ids("a-after", 100)...), b.of("a"))
	require.Equal(t, ids("b", 100), b.of("b"))
	require.Zero(t, count(t, db, db.Schema.DeadLetters()))
}

// What an operator has try again at once stands in the table as if it had never been tried, and the
// stream does not bring it again.
func TestRowThatAnOperatorChangesIsFound(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	b := broker{refused: map[string]bool{"a-1": true}}
	source := newSource(t, db)
	startWith(t, db, &b, forwarder.Config{Source: source, RetryInitial: time.Hour, RetryMax: time.Hour})
	requireStreaming(t, db)
	insertKeyed(t, db, db, "orders", "a", ids("a", 2)...)
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()+` WHERE next_attempt_at IS NOT NULL`) == 2 })
	b.set(func() { b.refused = nil })
	exec(t, db, `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = NULL`)
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	require.Equal(t, ids("a", 2), b.of("a"))
}

// A row that an operator has locked holds up its own unit, and neither the others nor its own for ever.
func TestLockedRowHoldsUpItsUnitOnly(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	startWith(t, db, &b, forwarder.Config{Source: newSource(t, db), DatabaseTimeout: time.Second})
	requireStreaming(t, db)

	b.set(func() { b.gone = true })
	insertKeyed(t, db, db, "orders", "locked", ids("locked", 3)...)
	operator := begin(t, db)
	exec(t, operator, `SELECT FROM `+db.Schema.Outbox()+` WHERE id = 'locked-1' FOR UPDATE`)
	b.set(func() { b.gone = false })
	for n := range 50 {
		insertKeyed(t, db, db, "orders", fmt.Sprint("key-", n), "other")
	}
	eventually(t, func() bool { return b.all() >= 51 })
	require.Empty(t, b.of("locked"))
	require.NoError(t, operator.Rollback())
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	require.Equal(t, ids("locked", 3), b.of("locked"))
}

func TestForwarderDoesNotStartWhereItCannotStream(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	f, err := forwarder.New(db.DB, &broker{}, forwarder.Config{Schema: db.Schema, Source: newSource(t, db, func(cfg *wal.Config) {
		cfg.AcceptUnboundedWAL = false
	})}, nil)
	require.NoError(t, err)
	err = f.Run(t.Context())
	require.ErrorIs(t, err, forwarder.ErrUnfitSource)
	require.ErrorIs(t, err, wal.ErrUnboundedWAL)
}

// Where the log cannot be read for a while, the table is.
func TestTableIsReadWhileThereIsNoStream(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	insertKeyed(t, db, db, "orders", "a", "a-1")
	eventually(t, func() bool { return len(b.of("a")) == 1 })
	exec(t, db, `ALTER PUBLICATION `+db.Schema.Schema+` DROP TABLE `+db.Schema.Outbox())
	exec(t, db, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, db.Schema.Schema)
	insertKeyed(t, db, db, "orders", "a", "a-2", "a-3")
	eventually(t, func() bool { return len(b.of("a")) == 3 })
	exec(t, db, `ALTER PUBLICATION `+db.Schema.Schema+` ADD TABLE `+db.Schema.Outbox())
	insertKeyed(t, db, db, "orders", "a", "a-4")
	eventually(t, func() bool { return len(b.of("a")) == 4 })
	require.Equal(t, ids("a", 4), b.of("a"))
}

// Postgres cannot read the log of a time without the publication, and a slot that stands before it
// would keep the log for ever.
func TestPublicationThatWasDropped(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	insertKeyed(t, db, db, "orders", "a", "a-1")
	eventually(t, func() bool { return len(b.of("a")) == 1 })
	exec(t, db, `DROP PUBLICATION `+db.Schema.Schema)
	insertKeyed(t, db, db, "orders", "a", "a-2")
	eventually(t, func() bool { return len(b.of("a")) == 2 })
	insertKeyed(t, db, db, "orders", "a", "a-3")
	end := position(t, db)
	eventually(t, func() bool { return len(b.of("a")) == 3 && confirmedBehind(t, db, db.Schema.Schema, end) })
	require.Equal(t, ids("a", 3), b.of("a"))
}

// Nothing is confirmed while the broker is away; then all comes, once.
func TestBrokerThatIsAwayHoldsTheSlot(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	b.set(func() { b.gone = true })
	insertKeyed(t, db, db, "orders", "a", ids("a", 100)...)
	end := position(t, db)
	require.Never(t, func() bool { return confirmedBehind(t, db, db.Schema.Schema, end) }, 1500*time.Millisecond, 50*time.Millisecond)
	b.set(func() { b.gone = false })
	eventually(t, func() bool {
		return count(t, db, db.Schema.Outbox()) == 0 && confirmedBehind(t, db, db.Schema.Schema, end)
	})
	require.Equal(t, ids("a", 100), b.of("a"))
}

// The server ends the stream again and again, the slot is dropped, and a standby takes over: nothing
// is lost, and a broker that confirms all gets each message once.
func TestStreamMayEndAtAnyTime(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	source := newSource(t, db)
	stop := start(t, db, &b, source)
	start(t, db, &b, source)
	const rounds, rows = 20, 50
	for round := range rounds {
		tx := begin(t, db)
		for n := range rows {
			insertKeyed(t, db, tx, "orders", fmt.Sprint("key-", n%5), fmt.Sprintf("%03d-%03d", round, n))
		}
		require.NoError(t, tx.Commit())
		exec(t, db, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, db.Schema.Schema)
		switch round {
		case rounds / 3:
			eventually(t, func() bool { // between two readers
				exec(t, db, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, db.Schema.Schema)
				_, err := db.ExecContext(t.Context(), `SELECT pg_drop_replication_slot($1)`, db.Schema.Schema)
				return err == nil
			})
		case rounds / 2:
			stop()
		}
	}
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
	require.Equal(t, rounds*rows, b.all())
	for n := range 5 {
		require.IsIncreasing(t, b.of(fmt.Sprint("key-", n)))
	}
}

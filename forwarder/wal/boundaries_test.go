package wal_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Of a transaction that was not read to its end, nothing is confirmed, however much of it is settled.
func TestRestartInTheMiddleOfATransaction(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	source := newSource(t, db, func(cfg *wal.Config) { cfg.QueueBytes = 1 << 10 })
	stream := open(t, source)
	insert(t, db, db, "before")
	stream.Settled(next(t, stream, 1)[0].Position)
	tx := begin(t, db)
	all := ids("row", 100)
	insert(t, db, tx, all...)
	require.NoError(t, tx.Commit())
	for read := 1; read < len(all); read += 10 {
		var part []forwarder.Change
		for len(part) < read {
			more, err := stream.Next(t.Context())
			require.NoError(t, err)
			part = append(part, more...)
		}
		require.Equal(t, all[:len(part)], idsOf(part))
		if len(part) == len(all) {
			break
		}
		stream.Settled(part[len(part)-1].Position)
		require.Less(t, stream.Confirmed(), part[0].Position.Commit)
		closeStream(t, stream)
		stream = open(t, source)
	}
	closeStream(t, stream)
	require.Equal(t, all, idsOf(next(t, open(t, newSource(t, db)), len(all))))
}

// What the server says while it has nothing for us has the slot go on, and not past what is in flight.
func TestRestartAfterAHeartbeat(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	other := newNeighbour(t, db, `"`+db.Schema.Schema+`".other`)
	source := newSource(t, db)
	stream := open(t, source)
	reopen := func() {
		closeStream(t, stream)
		stream = open(t, source)
	}
	heartbeat := func() {
		other.write(t)
		requireReports(t, db, 2)
	}

	insert(t, db, db, "1")
	stream.Settled(next(t, stream, 1)[0].Position)
	other.write(t)
	requireAllConfirmed(t, db)
	insert(t, db, db, "2") // it is not read
	reopen()
	second := next(t, stream, 1)
	require.Equal(t, []string{"2"}, idsOf(second))

	heartbeat() // it is not settled
	reopen()
	require.Equal(t, []string{"2"}, idsOf(next(t, stream, 1)))
	heartbeat()
	insert(t, db, db, "3")
	third := next(t, stream, 1)
	heartbeat()
	stream.Settled(second[0].Position)
	reopen()
	require.Equal(t, []string{"3"}, idsOf(next(t, stream, 1)))
	stream.Settled(third[0].Position)
	requireAllConfirmed(t, db)
	reopen()
	insert(t, db, db, "4")
	require.Equal(t, []string{"4"}, idsOf(next(t, stream, 1)))
}

// Several transactions may be settled at once, also before the stream has read the end of the last.
func TestRestartAfterSeveralTransactionsAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	source := newSource(t, db)
	stream := open(t, source)
	for n := range 3 {
		tx := begin(t, db)
		insert(t, db, tx, fmt.Sprint(n, "a"), fmt.Sprint(n, "b"))
		require.NoError(t, tx.Commit())
	}
	changes := next(t, stream, 6)
	stream.Settled(changes[4].Position)
	stream.Settled(changes[1].Position) // an earlier one takes nothing back
	eventually(t, func() bool { return stream.Confirmed() > changes[3].Position.Commit })
	closeStream(t, stream)
	stream = open(t, source)
	again := next(t, stream, 2)
	require.Equal(t, []string{"2a", "2b"}, idsOf(again))
	require.Equal(t, changes[4].Position, again[0].Position)
}

// limited is a broker that takes no more than some at first.
type limited struct {
	broker

	mu   sync.Mutex
	left int
}

func (l *limited) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	results := make([]error, len(msgs))
	taken := min(l.left, len(msgs))
	copy(results, l.broker.PublishBatch(ctx, msgs[:taken]))
	for i := taken; i < len(msgs); i++ {
		results[i] = forwarder.Unavailable(errTest)
	}
	l.left -= taken
	return results
}

func (l *limited) allow(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = n
}

// A forwarder ends after each message that there is: within a transaction, at the end of one, at the
// beginning of one. The next one goes on exactly there, also if the slot is gone.
func TestForwarderRestartsAtEachBoundary(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b limited
	source := newSource(t, db)
	cfg := forwarder.Config{Source: source, BatchSize: 4}
	stop := run(t, db, &b, cfg)
	b.allow(1)
	requireStreaming(t, db)
	var want []string
	for _, isSlotGone := range []bool{false, true} {
		for cut := range 8 {
			before := b.all()
			b.allow(cut)
			for n, rows := range []int{3, 1, 2, 1} {
				all := ids(fmt.Sprintf("%t-%d-%d", isSlotGone, cut, n), rows)
				commit(t, db, "a", all...)
				want = append(want, all...)
			}
			eventually(t, func() bool { return b.all() == before+cut })
			stop()
			if isSlotGone {
				dropSlot(t, db)
			}
			b.allow(1 << 20)
			stop = run(t, db, &b, cfg)
			requireDrained(t, db)
			requireAllConfirmed(t, db)
		}
	}
	require.Equal(t, want, b.of("a"))
}

// The transaction that settles fails, or its answer is lost: what the broker has comes again, and
// nothing else, in order.
func TestForwarderWhoseSessionsEndAtAnyTime(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	p := startProducers(t, db, 3)
	for range 20 {
		p.requireForwarded(t, &b, 20)
		exec(t, db, `SELECT pg_terminate_backend(pid) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
			WHERE l.relation = $1::regclass AND a.query NOT LIKE 'INSERT%' AND a.pid <> pg_backend_pid()`, db.Schema.Outbox())
	}
	p.stop()
	requireDrained(t, db)
	for key, ids := range p.written {
		require.Equal(t, ids, firsts(b.of(key)))
	}
}

// firsts leaves out what comes again.
func firsts(ids []string) (first []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			first = append(first, id)
		}
		seen[id] = true
	}
	return first
}

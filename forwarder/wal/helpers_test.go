package wal_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// run is start with a configuration and a publisher of the test's own.
func run(t *testing.T, db *testdb.DB, publisher message.Publisher, cfg forwarder.Config) (stop func()) {
	t.Helper()
	cfg.Schema = db.Schema
	cfg.PollInterval, cfg.RetryInitial, cfg.RetryMax = 5*time.Millisecond, 5*time.Millisecond, 50*time.Millisecond
	f, err := forwarder.New(db.DB, publisher, cfg, nil)
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

// commit inserts rows of a key in one transaction.
func commit(t *testing.T, db *testdb.DB, key string, ids ...string) {
	t.Helper()
	tx := begin(t, db)
	insertKeyed(t, db, tx, "orders", key, ids...)
	require.NoError(t, tx.Commit())
}

// requireDrained returns when the outbox is empty.
func requireDrained(t *testing.T, db *testdb.DB) {
	t.Helper()
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()) == 0 })
}

// requireAllConfirmed returns when the slot has confirmed all that is written by now, which with
// other tests beside takes whoever reads it.
func requireAllConfirmed(t *testing.T, db *testdb.DB) {
	t.Helper()
	end := position(t, db)
	eventually(t, func() bool { return confirmedBehind(t, db, db.Schema.Schema, end) })
}

// dropSlot waits for the server to notice that nobody reads it any more.
func dropSlot(t *testing.T, db *testdb.DB) {
	t.Helper()
	eventually(t, func() bool {
		_, err := db.ExecContext(t.Context(), `SELECT pg_drop_replication_slot($1)`, db.Schema.Schema)
		return err == nil
	})
}

// outboxOf puts the name of the table into a statement.
func outboxOf(db *testdb.DB, statement string) string {
	return strings.ReplaceAll(statement, `{outbox}`, db.Schema.Outbox())
}

// neighbour is a table that has nothing to do with the outbox.
type neighbour struct {
	db    *testdb.DB
	table string
}

func newNeighbour(t *testing.T, db *testdb.DB, table string) neighbour {
	t.Helper()
	exec(t, db, `CREATE TABLE `+table+` (id integer, filler text)`)
	return neighbour{db, table}
}

// write writes a megabyte of the log, and some.
func (n neighbour) write(t *testing.T) {
	t.Helper()
	exec(t, n.db, `INSERT INTO `+n.table+` SELECT g.n, repeat('x', 1000) FROM generate_series(1, 1000) AS g (n)`)
}

// requireReports returns when the reader of the slot has reported so many times more.
func requireReports(t *testing.T, db *testdb.DB, n int) {
	t.Helper()
	reported := func() (at time.Time) {
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT coalesce(max(r.reply_time), 'epoch') FROM pg_stat_replication AS r
			JOIN pg_replication_slots AS s ON s.active_pid = r.pid WHERE s.slot_name = $1`, db.Schema.Schema).Scan(&at))
		return at
	}
	for range n {
		last := reported()
		eventually(t, func() bool { return reported().After(last) })
	}
}

// producers write to the outbox until stop is called: each has a key of its own, "key-0" and so on,
// and one to three rows in a transaction.
type producers struct {
	stop    func()
	mu      sync.Mutex
	written map[string][]string
}

func startProducers(t *testing.T, db *testdb.DB, n int) *producers {
	t.Helper()
	p := &producers{written: map[string][]string{}}
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		working.Go(func() { errs <- p.produce(ctx, db, fmt.Sprint("key-", i)) })
	}
	p.stop = sync.OnceFunc(func() {
		cancel()
		working.Wait()
		for range n {
			require.NoError(t, <-errs)
		}
	})
	t.Cleanup(p.stop)
	return p
}

func (p *producers) produce(ctx context.Context, db *testdb.DB, key string) error {
	const query = ` (id, destination, partition_key, payload) SELECT unnest($1::text[]), 'orders', $2, 'x'`
	for n := 0; ctx.Err() == nil; {
		rows := make([]string, 1+n%3)
		for i := range rows {
			n++
			rows[i] = fmt.Sprintf("%s-%06d", key, n)
		}
		if _, err := db.ExecContext(context.WithoutCancel(ctx), `INSERT INTO `+db.Schema.Outbox()+query, pq.StringArray(rows), key); err != nil {
			return err
		}
		p.mu.Lock()
		p.written[key] = append(p.written[key], rows...)
		p.mu.Unlock()
	}
	return nil
}

// requireForwarded returns when the broker has taken so many more of what they write.
func (p *producers) requireForwarded(t *testing.T, b *broker, n int) {
	t.Helper()
	until := b.all() + n
	eventually(t, func() bool { return b.all() >= until })
}

// requireOnceAndInOrder stops them: the broker has taken exactly what they wrote.
func (p *producers) requireOnceAndInOrder(t *testing.T, db *testdb.DB, b *broker) {
	t.Helper()
	p.stop()
	requireDrained(t, db)
	for key, ids := range p.written {
		require.Equal(t, ids, b.of(key))
	}
}

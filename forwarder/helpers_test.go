package forwarder_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

const patience = 30 * time.Second

// publisherFunc is a BatchPublisher that a test scripts.
type publisherFunc func(ctx context.Context, msgs []forwarder.Outgoing) []error

func (f publisherFunc) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	return f(ctx, msgs)
}

func (f publisherFunc) Publish(string, ...*message.Message) error {
	panic("the forwarder must use PublishBatch")
}

func (f publisherFunc) Close() error { return nil }

// recorder keeps the ids that it confirmed, in order, by unit. Whatever fail returns
// for a message is its result instead.
type recorder struct {
	fail func(msg forwarder.Outgoing) error

	mu      sync.Mutex
	ids     []string
	byUnit  map[forwarder.Unit][]string
	batches []int
}

func (r *recorder) publisher() publisherFunc {
	return func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		r.mu.Lock()
		r.batches = append(r.batches, len(msgs))
		r.mu.Unlock()
		return forwarder.Waves(ctx, msgs, r.send)
	}
}

func (r *recorder) send(_ context.Context, wave []forwarder.Outgoing) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	results := make([]error, len(wave))
	for i, msg := range wave {
		if r.fail != nil {
			results[i] = r.fail(msg)
		}
		if results[i] != nil {
			continue
		}
		if r.byUnit == nil {
			r.byUnit = map[forwarder.Unit][]string{}
		}
		r.ids = append(r.ids, msg.Message.UUID)
		r.byUnit[msg.Unit()] = append(r.byUnit[msg.Unit()], msg.Message.UUID)
	}
	return results
}

func (r *recorder) confirmed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.ids...)
}

func (r *recorder) unit(destination, key string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.byUnit[forwarder.Unit{Destination: destination, PartitionKey: key}]...)
}

// start runs a forwarder until the test ends, or until stop is called, which returns
// what Run returned.
func start(t *testing.T, db *testdb.DB, pub message.Publisher, cfg forwarder.Config) (f *forwarder.Forwarder, stop func() error) {
	t.Helper()
	cfg.Schema = db.Schema
	f, err := forwarder.New(db.DB, pub, cfg, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { require.NoError(t, stop()) })
	select {
	case <-f.Running():
	case err := <-done:
		done <- err
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "the forwarder did not start")
	}
	return f, stop
}

// fast makes retries quick enough for a test.
func fast(cfg forwarder.Config) forwarder.Config {
	cfg.PollInterval = 2 * time.Millisecond
	cfg.RetryInitial = 5 * time.Millisecond
	cfg.RetryMax = 20 * time.Millisecond
	return cfg
}

func insert(t *testing.T, db *testdb.DB, destination, key string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := db.ExecContext(t.Context(),
			`INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload) VALUES ($1, $2, $3, 'x')`, id, destination, key)
		require.NoError(t, err)
	}
}

func insertMany(t *testing.T, db *testdb.DB, rows, keys int) {
	t.Helper()
	_, err := db.ExecContext(t.Context(),
		`INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		SELECT 'id-' || n, 'orders', 'key-' || n % $2, 'x' FROM generate_series(1, $1) AS n ORDER BY n`, rows, keys)
	require.NoError(t, err)
}

func idsInOutbox(t *testing.T, db *testdb.DB, where string) []string {
	t.Helper()
	return idsIn(t, db, db.Schema.Outbox(), where)
}

func deadLetters(t *testing.T, db *testdb.DB, where string) []string {
	t.Helper()
	return idsIn(t, db, db.Schema.DeadLetters(), where)
}

func idsIn(t *testing.T, db *testdb.DB, table, where string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT id FROM `+table+` WHERE `+where+` ORDER BY seq`)
	require.NoError(t, err)
	defer rows.Close()
	ids := []string{}
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(t, rows.Err())
	return ids
}

// requireOutbox waits until the rows that where selects are those with the given ids.
func requireOutbox(t *testing.T, db *testdb.DB, where string, ids ...string) {
	t.Helper()
	require.Eventuallyf(t, func() bool {
		return slices.Equal(idsInOutbox(t, db, where), ids)
	}, patience, 2*time.Millisecond, "want %v in the outbox, where %s", ids, where)
}

func requireDrained(t *testing.T, db *testdb.DB) {
	t.Helper()
	eventually(t, func() bool { return len(idsInOutbox(t, db, `published_at IS NULL`)) == 0 })
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, 2*time.Millisecond)
}

func ids(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d", prefix, i+1)
	}
	return list
}

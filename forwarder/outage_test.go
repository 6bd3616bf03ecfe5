package forwarder_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// journal keeps what is logged at the levels that a user sees.
type journal struct {
	watermill.NopLogger

	mu    sync.Mutex
	lines map[string]int
}

func (j *journal) Error(msg string, _ error, _ watermill.LogFields) { j.add("ERROR " + msg) }
func (j *journal) Info(msg string, _ watermill.LogFields)           { j.add("INFO " + msg) }
func (j *journal) With(watermill.LogFields) watermill.LoggerAdapter { return j }

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lines == nil {
		j.lines = map[string]int{}
	}
	j.lines[line]++
}

func (j *journal) count(line string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines[line]
}

// An outage is said once when it begins and once when it is over, however many workers
// meet it how often.
func TestOutageIsSaidOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		away  atomic.Bool
		tries atomic.Int64
		log   journal
	)
	away.Store(true)
	r := recorder{fail: func(msg forwarder.Outgoing) error {
		tries.Add(1)
		switch {
		case !away.Load():
			return nil
		case msg.Destination == "missing":
			return forwarder.DestinationUnavailable(errTest)
		default:
			return forwarder.Unavailable(errTest)
		}
	}}
	insert(t, db, "orders", "", ids("a", 200)...)
	insert(t, db, "missing", "", ids("m", 1)...)
	f, err := forwarder.New(db.DB, r.publisher(), fast(forwarder.Config{Schema: db.Schema, Workers: 4, BatchSize: 10}), &log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()

	eventually(t, func() bool { return tries.Load() > 100 })
	require.Equal(t, 1, log.count("ERROR Broker is unavailable, messages stay in the outbox"))
	require.Zero(t, log.count("INFO Broker is back"))
	away.Store(false)
	requireDrained(t, db)
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, 1, log.count("ERROR Broker is unavailable, messages stay in the outbox"))
	require.Equal(t, 1, log.count("INFO Broker is back"))
	require.Equal(t, log.count("INFO Destination is back"), min(1, log.count("ERROR Destination is unavailable, its messages wait")))
	require.Equal(t, 1, log.count("INFO Forwarder is stopping, it finishes the batches in flight"))
}

func TestDatabaseTroubleIsNamed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		r   recorder
		log journal
	)
	f, err := forwarder.New(db.DB, r.publisher(), fast(forwarder.Config{Schema: db.Schema}), &log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	<-f.Running()
	_, err = db.ExecContext(t.Context(), `ALTER TABLE `+db.Schema.Outbox()+` RENAME TO hidden`)
	require.NoError(t, err)
	eventually(t, func() bool {
		return log.count("ERROR Tables of the outbox are not as they should be, messages stay in the outbox") == 1
	})
	_, err = db.ExecContext(t.Context(), `ALTER TABLE "`+db.Schema.Schema+`".hidden RENAME TO outbox`)
	require.NoError(t, err)
	eventually(t, func() bool { return log.count("INFO Database is back") == 1 })
	insert(t, db, "orders", "a", "a-1")
	requireDrained(t, db)
	cancel()
	require.NoError(t, <-done)
}

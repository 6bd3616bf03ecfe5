package pgbouncertest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

// Everything goes through the pooler but the connections that wait: a forwarder that looks by
// itself every hour hears of each row.
func TestWriterBehindPgBouncerWakesForwarder(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	var published recorder
	startSleepy(t, db, db.directDSN, time.Hour, &published, errorLogger{t})
	for range 3 {
		eventually(t, func() bool { return db.sleepers(t) == 1 }, "the forwarder does not sleep")
		require.NoError(t, publish(t.Context(), db.open(t, modes[1]), db.schema, newMessage("a", 1)))
		eventually(t, func() bool { return db.count(t, db.schema.Outbox(), `true`) == 0 }, "the outbox is not drained")
	}
}

// In transaction mode nobody hears anything. The forwarder finds out, says so, and looks.
func TestForwarderCannotListenThroughPgBouncer(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	var published recorder
	log := &says{what: "session mode"}
	startSleepy(t, db, db.pooledDSN, 50*time.Millisecond, &published, log)
	eventually(t, func() bool { return log.said.Load() }, "it is not said")
	require.Zero(t, db.sleepers(t))
	require.NoError(t, publish(t.Context(), db.direct, db.schema, newMessage("a", 1)))
	eventually(t, func() bool { return db.count(t, db.schema.Outbox(), `true`) == 0 }, "the outbox is not drained")
}

func startSleepy(t *testing.T, db database, listenDSN string, poll time.Duration, published *recorder, log watermill.LoggerAdapter) {
	t.Helper()
	f, err := forwarder.New(db.open(t, modes[1]), published.publisher(), forwarder.Config{
		Schema: db.schema, ListenDSN: listenDSN, PollInterval: poll, DatabaseTimeout: 3 * time.Second, RetryInitial: 5 * time.Millisecond,
	}, log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// sleepers is how many sessions hold the lock of a forwarder that sleeps.
func (d database) sleepers(t *testing.T) (n int) {
	t.Helper()
	all, outbox := d.schema.WakeUpLock()
	err := d.direct.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_catalog.pg_locks AS l
		WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = $1 AND l.objid = $2
			AND l.mode = 'ExclusiveLock' AND l.granted`, all, outbox).Scan(&n)
	require.NoError(t, err)
	return n
}

// says waits for an error.
type says struct {
	watermill.NopLogger

	what string
	said atomic.Bool
}

func (s *says) Error(_ string, err error, _ watermill.LogFields) {
	if err != nil && !errors.Is(err, errFirst) && strings.Contains(err.Error(), s.what) {
		s.said.Store(true)
	}
}

func (s *says) With(watermill.LogFields) watermill.LoggerAdapter { return s }

package inbox

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"
)

// RunRetention calls DeleteOlderThan now and then until ctx ends, and returns nil: a
// minute after the start at the latest, and then every tenth part of age, but at least once
// an hour and at most once a minute, with jitter. Start it in a goroutine of the service,
// for each inbox table; several replicas do no harm. What goes wrong is logged, and tried
// again with a growing delay. A nil logger logs nothing. An age of zero or less is
// ErrInvalidAge, at once.
func (s *Store) RunRetention(ctx context.Context, db *sql.DB, age time.Duration, logger watermill.LoggerAdapter) error {
	if age <= 0 {
		return fmt.Errorf("%w: it is %s", ErrInvalidAge, age)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	r := retention{
		store: s, db: db, age: age, interval: min(max(age/10, time.Minute), time.Hour),
		logger: logger.With(watermill.LogFields{"inbox": s.config.Schema.Inbox()}),
	}
	r.run(ctx)
	return nil
}

// retentionTimeout bounds one go, so that a server that says nothing is asked again on
// another connection. What it has deleted by then stays deleted.
const retentionTimeout = 10 * time.Minute

type retention struct {
	store    *Store
	db       *sql.DB
	age      time.Duration
	interval time.Duration
	logger   watermill.LoggerAdapter
}

func (r retention) run(ctx context.Context) {
	retry := backoff.NewExponentialBackOff()
	retry.MaxInterval = r.interval
	for wait := rand.N(min(r.interval, time.Minute)); pause(ctx, wait); {
		err := r.once(ctx)
		if err == nil {
			retry.Reset()
			wait = r.interval*9/10 + rand.N(r.interval/5+1)
			continue
		}
		wait = min(retry.NextBackOff(), r.interval)
		if ctx.Err() == nil {
			r.logger.Error("Old keys of the inbox could not be deleted", err, watermill.LogFields{"retry_in": wait})
		}
	}
}

func (r retention) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, retentionTimeout)
	defer cancel()
	deleted, err := r.store.DeleteOlderThan(ctx, r.db, r.age)
	if deleted > 0 {
		r.logger.Info("Old keys of the inbox were deleted", watermill.LogFields{"count": deleted})
	}
	return err
}

// pause says whether to go on.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

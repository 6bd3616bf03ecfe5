package forwarder

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"
)

// worker forwards batch after batch, on one connection at a time.
type worker struct {
	config      Config
	db          *sql.DB
	publisher   BatchPublisher
	claimer     claimer
	settler     settler
	away        *awayDestinations
	boundsQuery string
	wake        <-chan struct{}
	logger      watermill.LoggerAdapter

	// passUntil is how long rows that others have locked are passed by.
	passUntil time.Time
}

// run works until ctx ends. No failure ends it: it waits and tries again.
func (w *worker) run(ctx context.Context) {
	backOff := w.config.newBackOff()
	for ctx.Err() == nil {
		out, err := w.forwardBatch(ctx)
		switch {
		case err != nil && ctx.Err() != nil && out.claimed == 0:
			return // a claim that was given up; whatever else went wrong with it does not matter
		case err != nil:
			w.pause(ctx, backOff.NextBackOff(), "Batch failed, its messages stay in the outbox", err)
		case out.obstacle != nil && out.confirmed == 0:
			w.pause(ctx, backOff.NextBackOff(), "Broker is unavailable, messages stay in the outbox", out.obstacle)
		case out.claimed == 0:
			backOff.Reset()
			w.idle(ctx)
		default:
			backOff.Reset()
		}
	}
}

func (w *worker) pause(ctx context.Context, wait time.Duration, what string, err error) {
	w.logger.Error(what, err, watermill.LogFields{"retry_in": wait})
	sleep(ctx, wait, nil)
}

// idle waits for the next poll, with jitter, so that replicas that started together
// do not ask together.
func (w *worker) idle(ctx context.Context) {
	interval := w.config.PollInterval
	jittered := interval*9/10 + rand.N(interval/5+1)
	sleep(ctx, jittered, w.wake)
}

func sleep(ctx context.Context, wait time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
}

func (c Config) newBackOff() backoff.BackOff {
	exponential := backoff.NewExponentialBackOff()
	exponential.InitialInterval = c.RetryInitial
	exponential.MaxInterval = c.RetryMax
	exponential.Multiplier = 2
	exponential.Reset()
	return exponential
}

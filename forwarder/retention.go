package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/watermill-outbox/outbox/schema"
)

// Retention says how long a running Forwarder keeps what is done with, by the database's
// clock. The zero value keeps it for ever. It deletes in transactions of at most 1000 rows,
// beside the workers, and never waits for a row that somebody has locked. It looks a minute
// after it has started at the latest, and then every tenth part of the shorter time, but at
// least once an hour and at most once a minute. Several replicas do no harm.
type Retention struct {
	// Published is how long a row is kept after it was published, where Settlement is
	// MarkPublished. Rows that are not published are never deleted. Zero: for ever.
	Published time.Duration
	// DeadLetters is how long a dead letter is kept after it died, unless it blocks its
	// unit: then it stays until it is replayed or discarded. Zero: for ever.
	DeadLetters time.Duration
}

func (r Retention) validate() error {
	if r.Published < 0 {
		return fmt.Errorf("%w: Retention.Published is %s, it must not be negative", ErrInvalidConfig, r.Published)
	}
	if r.DeadLetters < 0 {
		return fmt.Errorf("%w: Retention.DeadLetters is %s, it must not be negative", ErrInvalidConfig, r.DeadLetters)
	}
	return nil
}

// interval is how often it looks. Zero: never.
func (r Retention) interval() time.Duration {
	shorter := r.Published
	if shorter == 0 || (r.DeadLetters > 0 && r.DeadLetters < shorter) {
		shorter = r.DeadLetters
	}
	if shorter == 0 {
		return 0
	}
	return min(max(shorter/10, time.Minute), time.Hour)
}

// retention deletes what is old, beside the workers of a forwarder.
type retention struct {
	admin    *Admin
	keep     Retention
	interval time.Duration
	// timeout bounds each transaction.
	timeout time.Duration
	logger  watermill.LoggerAdapter
	outage  *outage
	// seen are rows that were looked at, and cannot be old yet.
	seen spans
}

func newRetention(db *sql.DB, s schema.Postgres, keep Retention, timeout time.Duration, logger watermill.LoggerAdapter) *retention {
	return &retention{
		admin:    &Admin{db: db, schema: s},
		keep:     keep,
		interval: keep.interval(),
		timeout:  timeout,
		logger:   logger,
		outage:   &outage{what: "Retention", logger: logger},
	}
}

// run deletes what is old now and then, until ctx ends. It returns at once where everything
// is kept.
func (r *retention) run(ctx context.Context) {
	if r.interval == 0 {
		return
	}
	retry := backoff.NewExponentialBackOff()
	retry.MaxInterval = r.interval
	for wait := rand.N(min(r.interval, time.Minute)); ; {
		sleep(ctx, wait, nil)
		if ctx.Err() != nil {
			return
		}
		began := time.Now()
		err := r.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait = min(retry.NextBackOff(), r.interval)
			r.outage.note("Old rows could not be deleted", err, wait, began)
		default:
			retry.Reset()
			r.outage.over()
			wait = r.interval*9/10 + rand.N(r.interval/5+1)
		}
	}
}

// pass deletes all that is old.
func (r *retention) pass(ctx context.Context) error {
	if r.keep.Published > 0 {
		deleted, err := r.admin.deletePublished(ctx, r.keep.Published, &r.seen, r.pace)
		r.log("Published rows were deleted", deleted)
		if err != nil {
			return err
		}
	}
	if r.keep.DeadLetters > 0 {
		deleted, err := r.admin.deleteDeadLetters(ctx, r.keep.DeadLetters, r.pace)
		r.log("Dead letters were deleted", deleted)
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *retention) log(message string, deleted int64) {
	if deleted > 0 {
		r.logger.Info(message, watermill.LogFields{"count": deleted})
	}
}

// pace bounds a batch, and rests after it for as long as it took, so that at most half the
// time is spent on what is in no hurry.
func (r *retention) pace(ctx context.Context, batch func(ctx context.Context) error) error {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	_, err := answered(2*r.timeout, func() (struct{}, error) { return struct{}{}, batch(bounded) })
	if err == nil {
		sleep(ctx, time.Since(began), nil)
	}
	return err
}

// paceFunc runs one batch.
type paceFunc func(ctx context.Context, batch func(ctx context.Context) error) error

func noPace(ctx context.Context, batch func(ctx context.Context) error) error { return batch(ctx) }

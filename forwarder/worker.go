package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/watermill-outbox/outbox/schema"
)

// worker forwards batch after batch, on one connection at a time.
type worker struct {
	config    Config
	db        *sql.DB
	publisher BatchPublisher
	claimer   claimer
	settler   settler
	routes    *Routes // nil: there is but one broker
	away      *absences
	registry  *registry
	database  *outage
	broker    *outage
	paces     *paces
	suspects  *suspects
	lookout   *lookout
	// hot are lanes that one worker takes and the others do not. nil: it takes any.
	hot      *hotLanes
	tendsHot bool
	// besides says that its last claim was of what is beside the hot units.
	besides bool
	logger  watermill.LoggerAdapter

	serverVersion int

	// passUntil is how long rows that others have locked are passed by.
	passUntil time.Time
	// lookedAt is when rows that wait were last looked for, lookedLast whether the last claim
	// did, and lookSoon whether the next one is to.
	lookedAt   time.Time
	lookedLast bool
	lookSoon   bool
	// lane is the one to begin the next claim with.
	lane int
	// tried are units that were tried alone and failed, while the broker seems to be away.
	tried []int64
	// rehearseUntil is how long settling is tried before a batch is published, in Unix
	// nanoseconds.
	rehearseUntil atomic.Int64
	// publishing says that the publisher is at work.
	publishing atomic.Bool
	// inHand says that a batch is published or settled.
	inHand atomic.Bool
	// another makes a worker that takes the place of this one.
	another func() *worker
	// streams says that it needs to know which rows are left as they were.
	streams bool
	// probing says that it tries what is away.
	probing bool
	// refused says that a batch failed for want of a privilege. All workers share it.
	refused *atomic.Bool
}

// run works until ctx ends. No failure ends it: it waits and tries again. Where the database
// does not answer at all, another worker takes its place.
func (w *worker) run(ctx context.Context) {
	backOff := w.config.newBackOff()
	for ctx.Err() == nil {
		if w.tendsHot && !w.hot.await(ctx) {
			return
		}
		began := time.Now()
		out, err := w.turn(ctx, w.claim)
		if errors.Is(err, errUnanswered) {
			w.database.note(databaseTrouble(err), err, 0, began)
			w.giveUp()
			heir := w.another()
			heir.hot, heir.tendsHot = w.hot, w.tendsHot
			heir.run(ctx)
			return
		}
		if err != nil && ctx.Err() != nil && out.claimed == 0 {
			return // a claim that was given up; whatever else went wrong with it does not matter
		}
		if err == nil {
			w.database.over()
			w.noteClaim(out)
		}
		w.noteConfirmed(out)
		w.pause(ctx, out, err, began, backOff)
	}
}

// noteConfirmed says that the broker is there.
func (w *worker) noteConfirmed(out outcome) {
	if out.confirmed > 0 && w.broker.over() {
		w.away.remember(entry{kind: kindBroker})
		w.away.wake()
	}
}

// pause waits until the next turn.
func (w *worker) pause(ctx context.Context, out outcome, err error, began time.Time, backOff backoff.BackOff) {
	switch {
	case err != nil:
		wait := w.config.next(backOff)
		w.database.note(databaseTrouble(err), schema.Explain(err), wait, began)
		if isReadOnly(err) {
			w.dropConnections(ctx)
		}
		sleep(ctx, wait, nil)
	case out.obstacle != nil && out.confirmed == 0:
		wait := w.config.next(backOff)
		w.broker.note("Broker is unavailable, messages stay in the outbox", out.obstacle, wait, began)
		w.registerBroker(ctx, out.obstacle, wait)
		sleep(ctx, wait, nil)
	case out.barred && w.tendsHot:
		sleep(ctx, hotPause, nil)
	case out.claimed == 0 && !w.tendsHot:
		backOff.Reset()
		w.lane = w.lookout.await(ctx)
	default:
		backOff.Reset()
	}
}

// turn gives up a call into the database that does not return. A call into the publisher is
// waited for: what it still may send must not be sent beside it without an end.
func (w *worker) turn(ctx context.Context, claim claimFunc) (outcome, error) {
	type result struct {
		out outcome
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := w.forwardIfPermitted(ctx, claim)
		done <- result{out, err}
	}()
	limit, ended, hurried := w.turnLimit(), ctx.Done(), false
	for {
		timer := time.NewTimer(limit)
		select {
		case r := <-done:
			timer.Stop()
			return r.out, r.err
		case <-ended: // a claim is waited for no longer than Run is; a batch in hand is finished
			timer.Stop()
			ended, hurried = nil, !w.inHand.Load()
			if hurried {
				limit = 4 * w.config.DatabaseTimeout
			}
		case <-timer.C:
			isFinishing := hurried && w.inHand.Load()
			if !w.publishing.Load() && !isFinishing {
				return outcome{}, fmt.Errorf("%w within %s", errUnanswered, limit)
			}
			hurried, limit = false, w.turnLimit()
		}
	}
}

// giveUp has everything read again: what a turn that was given up was about to find out, and
// what it has locked, nobody else knows.
func (w *worker) giveUp() { w.claimer.marks.forget() }

// registerBroker tells operators that the only broker is away. All replicas try it: whether
// it is away may be a matter of where they stand.
func (w *worker) registerBroker(ctx context.Context, obstacle error, wait time.Duration) {
	began := time.Now()
	if _, err := w.registry.take(ctx, entry{kind: kindBroker}, obstacle, wait); err != nil && ctx.Err() == nil {
		w.database.note(databaseTrouble(err), schema.Explain(err), wait, began)
	}
}

// forwardIfPermitted does not publish again and again what the role may not settle.
func (w *worker) forwardIfPermitted(ctx context.Context, claim claimFunc) (outcome, error) {
	if w.refused.Load() {
		if err := w.checkPrivileges(ctx); err != nil {
			return outcome{}, err
		}
		w.refused.Store(false)
	}
	out, err := w.forwardBatch(ctx, claim)
	if hasSQLState(err, insufficientPrivilege) {
		w.refused.Store(true)
	}
	return out, err
}

func (w *worker) checkPrivileges(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.config.DatabaseTimeout)
	defer cancel()
	return inReadOnlyTx(ctx, w.db, func(tx *sql.Tx) error { return requirePrivileges(ctx, tx, w.config.Schema) })
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

// next is the wait before the next attempt; the jitter does not take it over RetryMax.
func (c Config) next(b backoff.BackOff) time.Duration { return min(b.NextBackOff(), c.RetryMax) }

func (c Config) newBackOff() backoff.BackOff {
	exponential := backoff.NewExponentialBackOff()
	exponential.InitialInterval = c.RetryInitial
	exponential.MaxInterval = c.RetryMax
	exponential.Multiplier = 2
	exponential.Reset()
	return exponential
}

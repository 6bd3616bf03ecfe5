package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/middleware"
)

const tableRetries = 2

// combination says which of Watermill's middlewares stand around the inbox, in the
// documented order.
type combination struct{ poison, retry, breaker, recoverer, timeout bool }

func everyCombination() []combination {
	var all []combination
	for bits := range 1 << 5 {
		all = append(all, combination{
			poison: bits&1 != 0, retry: bits&2 != 0, breaker: bits&4 != 0, recoverer: bits&8 != 0, timeout: bits&16 != 0,
		})
	}
	return all
}

func (c combination) String() string {
	var names []string
	for _, m := range []struct {
		on   bool
		name string
	}{{c.poison, "PoisonQueue"}, {c.retry, "Retry"}, {c.breaker, "CircuitBreaker"}, {c.recoverer, "Recoverer"}, {c.timeout, "Timeout"}} {
		if m.on {
			names = append(names, m.name)
		}
	}
	return strings.Join(append(names, "Inbox"), "+")
}

func (c combination) middlewares(t *testing.T, b *testBundle, timeout time.Duration) (list []message.HandlerMiddleware) {
	t.Helper()
	if c.poison {
		list = append(list, poisonQueue(t, middleware.PoisonPublisher(ownTransaction{b}, wait), "poison", middleware.IsPermanent))
	}
	if c.retry {
		list = append(list, retry(tableRetries))
	}
	if c.breaker {
		list = append(list, breaker(gobreaker.Settings{}))
	}
	if c.recoverer {
		list = append(list, wm.Recoverer)
	}
	if c.timeout {
		list = append(list, wm.Timeout(timeout))
	}
	return list
}

func poisonQueue(t *testing.T, publisher message.Publisher, topic string, filter func(error) bool) message.HandlerMiddleware {
	t.Helper()
	queue, err := wm.PoisonQueueWithFilter(publisher, topic, filter)
	require.NoError(t, err)
	return queue
}

func retry(maxRetries int) message.HandlerMiddleware {
	return wm.Retry{
		MaxRetries:          maxRetries,
		InitialInterval:     time.Millisecond,
		ResetContextOnRetry: true,
		ShouldRetry:         func(p wm.RetryParams) bool { return !middleware.IsPermanent(p.Err) },
	}.Middleware
}

func breaker(settings gobreaker.Settings) message.HandlerMiddleware {
	settings.IsSuccessful = func(err error) bool { return err == nil || middleware.IsPermanent(err) }
	return wm.NewCircuitBreaker(settings).Middleware
}

// ownTransaction is a poison queue in the outbox, written in a transaction of its own
// that lives under the message's context.
type ownTransaction struct{ b *testBundle }

func (p ownTransaction) Publish(topic string, msgs ...*message.Message) error {
	ctx := msgs[0].Context()
	tx, err := p.b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := p.b.config.Outbox.PublishTx(ctx, tx, topic, msgs...); err != nil {
		return err
	}
	return tx.Commit()
}

func (ownTransaction) Close() error { return nil }

// outcome is what a handler makes of its nth attempt, after its effect, and what must
// come of it.
type outcome struct {
	handle func(ctx context.Context, attempt int64) error
	want   func(c combination) expectation
	// overruns says that the handler waits for the end of its context: such a case needs
	// a Timeout, and how many attempts get as far as the handler depends on the machine.
	overruns bool
}

type expectation struct {
	attempts int64
	// nacked says that the first delivery fails and the broker delivers again.
	nacked bool
	found  found
}

// found is what is in the database in the end, for one event.
type found struct{ keys, effects, outbox, poisoned int }

var (
	handled = found{keys: 1, effects: 1, outbox: 1}
	nothing = found{}
)

// attemptsOfTwoDeliveries is how often the handler runs where it always fails.
func attemptsOfTwoDeliveries(retried bool) int64 {
	if retried {
		return 2 * (1 + tableRetries)
	}
	return 2
}

var outcomes = map[string]outcome{
	"succeeds": {
		handle: func(context.Context, int64) error { return nil },
		want:   func(combination) expectation { return expectation{attempts: 1, found: handled} },
	},
	"fails once": {
		handle: func(_ context.Context, attempt int64) error {
			if attempt == 1 {
				return errHandler
			}
			return nil
		},
		want: func(c combination) expectation { return expectation{attempts: 2, nacked: !c.retry, found: handled} },
	},
	"panics once": {
		handle: func(_ context.Context, attempt int64) error {
			if attempt == 1 {
				panic("boom")
			}
			return nil
		},
		want: func(c combination) expectation {
			return expectation{attempts: 2, nacked: !c.retry || !c.recoverer, found: handled}
		},
	},
	"always fails": {
		handle: func(context.Context, int64) error { return errHandler },
		want: func(c combination) expectation {
			return expectation{attempts: attemptsOfTwoDeliveries(c.retry), nacked: true, found: nothing}
		},
	},
	"always panics": {
		handle: func(context.Context, int64) error { panic("boom") },
		want: func(c combination) expectation {
			return expectation{attempts: attemptsOfTwoDeliveries(c.retry && c.recoverer), nacked: true, found: nothing}
		},
	},
	"is refused for good": {
		handle: func(context.Context, int64) error { return fmt.Errorf("%w: %w", middleware.ErrPermanent, errHandler) },
		want: func(c combination) expectation {
			if c.poison {
				return expectation{attempts: 1, found: found{poisoned: 1}}
			}
			return expectation{attempts: 2, nacked: true, found: nothing}
		},
	},
	"overruns and says so": {
		overruns: true,
		handle:   func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() },
		want:     func(combination) expectation { return expectation{nacked: true, found: nothing} },
	},
	"overruns and hides it": {
		overruns: true,
		handle:   func(ctx context.Context, _ int64) error { <-ctx.Done(); return nil },
		want:     func(combination) expectation { return expectation{nacked: true, found: nothing} },
	},
}

// place puts the inbox next to the handler that add adds to the router.
type place func(router *message.Router, outer []message.HandlerMiddleware, i *middleware.Inbox, add addHandler)

type addHandler = func(decorate message.HandlerMiddleware) *message.Handler

func onTheHandlerItself(router *message.Router, outer []message.HandlerMiddleware, i *middleware.Inbox, add addHandler) {
	router.AddMiddleware(outer...)
	add(i.Middleware)
}

func asHandlerMiddleware(router *message.Router, outer []message.HandlerMiddleware, i *middleware.Inbox, add addHandler) {
	router.AddMiddleware(outer...)
	add(nil).AddMiddleware(i.Middleware)
}

func onTheRouter(router *message.Router, outer []message.HandlerMiddleware, i *middleware.Inbox, add addHandler) {
	router.AddMiddleware(append(outer, i.Middleware)...)
	add(nil)
}

// Every subset of Watermill's middlewares in the documented order, with every way to
// place the inbox: key, effect, produced message, settlement and poison queue.
func TestInbox_Combinations(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		place  place
		driver string
	}{
		"on the handler itself":         {onTheHandlerItself, "postgres"},
		"on the handler itself, on pgx": {onTheHandlerItself, native},
		"as handler middleware":         {asHandlerMiddleware, "postgres"},
		"on the router":                 {onTheRouter, native},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, test.driver)
			for _, c := range everyCombination() {
				for outcomeName, o := range outcomes {
					if o.overruns && !c.timeout {
						continue
					}
					t.Run(c.String()+"/"+outcomeName, func(t *testing.T) {
						t.Parallel()
						b.runCase(t, test.place, c, o)
					})
				}
			}
		})
	}
}

func (b *testBundle) runCase(t *testing.T, place place, c combination, o outcome) {
	t.Helper()
	event := newMessage(t.Name())
	timeout := wait
	if o.overruns {
		timeout = 20 * time.Millisecond
	}
	var attempts, duplicates atomic.Int64
	handler := func(msg *message.Message) ([]*message.Message, error) {
		attempt := attempts.Add(1)
		if err := b.pool.exec(msg.Context(), `INSERT INTO `+b.effects()+` (event_id) VALUES ($1)`, msg.UUID); err != nil {
			return nil, err
		}
		return []*message.Message{newMessage(msg.UUID)}, o.handle(msg.Context(), attempt)
	}
	config := b.config
	config.OnDuplicate = func(context.Context, inbox.Key) { duplicates.Add(1) }
	i, err := middleware.NewInbox(config, nil)
	require.NoError(t, err)

	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	router := message.NewDefaultRouter(nil)
	deliveries := make(chan error, 10)
	router.AddMiddleware(observe(deliveries))
	place(router, c.middlewares(t, b, timeout), i, func(decorate message.HandlerMiddleware) *message.Handler {
		h := message.HandlerFunc(handler)
		if decorate != nil {
			h = decorate(h)
		}
		return router.AddHandler("payments", "orders", pubSub, "payment.made", b.config.Outbox, h)
	})
	stop := start(t, router)
	defer stop()

	want := o.want(c)
	require.NoError(t, pubSub.Publish("orders", event))
	first := receive(t, deliveries)
	if want.nacked {
		require.Error(t, first)
		require.False(t, middleware.IsPermanent(first) && c.poison)
		require.Equal(t, o.overruns, errors.Is(first, context.DeadlineExceeded), "%v", first)
		second := receive(t, deliveries)
		require.Equal(t, want.found.keys == 1, second == nil, "%v", second)
	} else {
		require.NoError(t, first)
	}
	if !o.overruns {
		require.Equal(t, want.attempts, attempts.Load())
	}
	require.Equal(t, want.found, b.found(t, event.UUID))
	if want.found.keys == 0 {
		return
	}

	// What was handled is dropped when it comes again.
	before := attempts.Load()
	require.NoError(t, pubSub.Publish("orders", event.Copy()))
	require.NoError(t, receive(t, deliveries))
	require.EqualValues(t, 1, duplicates.Load())
	require.Equal(t, before, attempts.Load())
	require.Equal(t, want.found, b.found(t, event.UUID))
}

var errPanicked = errors.New("test: a panic came out of the middlewares")

// observe stands outermost and reports what comes of each delivery. It lets the broker
// deliver a failed message once more and then acks it, so that the test ends.
func observe(deliveries chan<- error) message.HandlerMiddleware {
	var failed atomic.Bool
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			defer func() {
				panicked := recover()
				if panicked != nil {
					err = errPanicked
				}
				deliveries <- err
				switch {
				case err == nil:
				case failed.Swap(true):
					err = nil
				case panicked != nil:
					panic(panicked)
				}
			}()
			return next(msg)
		}
	}
}

// start runs router until stop is called.
func start(t *testing.T, router *message.Router) (stop func()) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	receive(t, router.Running())
	return func() {
		require.NoError(t, router.Close())
		require.NoError(t, receive(t, ended))
	}
}

func (b *testBundle) found(t *testing.T, id string) (f found) {
	t.Helper()
	err := b.db.QueryRowContext(t.Context(), `SELECT
		(SELECT count(*) FROM `+b.db.Schema.Inbox()+` WHERE event_id = $1),
		(SELECT count(*) FROM `+b.effects()+` WHERE event_id = $1),
		(SELECT count(*) FROM `+b.db.Schema.Outbox()+` WHERE id = $1 AND destination = 'payment.made'),
		(SELECT count(*) FROM `+b.db.Schema.Outbox()+` WHERE id = $1 AND destination = 'poison'
			AND metadata ->> 'reason_poisoned' LIKE '%' || $2 || '%' AND metadata ->> 'topic_poisoned' = 'orders')`,
		id, errHandler.Error()).Scan(&f.keys, &f.effects, &f.outbox, &f.poisoned)
	require.NoError(t, err)
	return f
}

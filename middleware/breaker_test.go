package middleware_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/middleware"
)

// tripAfter opens a breaker after n failures in a row.
func tripAfter(n uint32) func(gobreaker.Counts) bool {
	return func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= n }
}

// watch counts deliveries by what came of them.
type watch struct{ acked, open, failed atomic.Int64 }

func (w *watch) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := next(msg)
		switch {
		case err == nil:
			w.acked.Add(1)
		case errors.Is(err, gobreaker.ErrOpenState):
			w.open.Add(1)
		default:
			w.failed.Add(1)
		}
		return produced, err
	}
}

// An open breaker fails messages before the inbox: nothing runs, nothing is recorded,
// nothing is poisoned, and the message is delivered again.
func TestInbox_OpenCircuitBreaker(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]message.HandlerFunc{
		"after errors": fail,
		"after panics": func(*message.Message) ([]*message.Message, error) { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDriver(t, func(t *testing.T, b *testBundle) {
				var w watch
				pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
				router := message.NewDefaultRouter(nil)
				router.AddMiddleware(w.middleware,
					poisonQueue(t, middleware.PoisonPublisher(ownTransaction{b}, wait), "poison", middleware.IsPermanent),
					retry(1),
					breaker(gobreaker.Settings{Timeout: time.Hour, ReadyToTrip: tripAfter(3)}),
					wm.Recoverer, wm.Timeout(wait))
				router.AddHandler("payments", "orders", pubSub, "payment.made", b.config.Outbox, b.wrap(t, b.then(failure)))
				stop := start(t, router)
				defer stop()
				require.NoError(t, pubSub.Publish("orders", newMessage("1")))
				require.Eventually(t, func() bool { return w.open.Load() >= 5 }, wait, tick)
				require.EqualValues(t, 3, b.runs.Load(), "the third failure opened it, in the second delivery")
				require.EqualValues(t, 1, w.failed.Load())
				require.Zero(t, w.acked.Load())
				require.Equal(t, counts{}, b.counts(t))
			})
		})
	}
}

// When what failed is back, the breaker closes, and the message is handled once.
func TestInbox_CircuitBreakerThatCloses(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		var w watch
		var back atomic.Bool
		pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
		router := message.NewDefaultRouter(nil)
		router.AddMiddleware(w.middleware, retry(1),
			breaker(gobreaker.Settings{Timeout: 10 * time.Millisecond, ReadyToTrip: tripAfter(1)}), wm.Recoverer)
		router.AddConsumerHandler("payments", "orders", pubSub, b.inbox(t).NoPublish(func(msg *message.Message) error {
			if _, err := b.debit(msg); err != nil {
				return err
			}
			if !back.Load() {
				return errHandler
			}
			return nil
		}))
		stop := start(t, router)
		defer stop()
		require.NoError(t, pubSub.Publish("orders", newMessage("1")))
		require.Eventually(t, func() bool { return w.open.Load() > 0 }, wait, tick)
		require.Equal(t, counts{}, b.counts(t))
		back.Store(true)
		require.Eventually(t, func() bool { return w.acked.Load() == 1 }, wait, tick)
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

// Bad messages say nothing about what the handler depends on: a row of them must not
// hold up the good one behind them.
func TestInbox_PermanentErrorsDoNotOpenTheCircuitBreaker(t *testing.T) {
	t.Parallel()
	b := setup(t, native)
	const bad = 10 // the breaker's default is 6
	handler := b.then(func(msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == "good" {
			return nil, nil
		}
		return nil, refuse(msg)
	})
	msgs := make([]*message.Message, 0, bad+1)
	for i := range bad {
		msgs = append(msgs, newMessage("bad "+string(rune('a'+i))))
	}
	errs := route{}.deliver(t, b.wrap(t, handler), []message.HandlerMiddleware{
		poisonQueue(t, middleware.PoisonPublisher(ownTransaction{b}, wait), "poison", middleware.IsPermanent),
		retry(1), breaker(gobreaker.Settings{}), wm.Recoverer, wm.Timeout(wait),
	}, append(msgs, newMessage("good"))...)
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, counts{keys: 1, effects: 1, outbox: bad}, b.counts(t))
}

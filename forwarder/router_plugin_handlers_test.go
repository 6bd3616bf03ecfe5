package forwarder_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

func ignore(*message.Message) error { return nil }

// requireForwards proves that the forwarder works.
func requireForwards(t *testing.T, db *testdb.DB, f *forwarder.Forwarder, r *recorder, id string) {
	t.Helper()
	insert(t, db, "orders", id, id)
	eventually(t, func() bool {
		f.Wake()
		return slices.Contains(r.confirmed(), id)
	})
}

// A handler that is added while the router runs, in a context of its own, outlives the
// router's context, as it does without a forwarder. The forwarder outlives the handler.
func TestRouterPlugin_EndsAfterHandlersThatWereAddedLater(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *runningRouter, endHandler func()){
		"its context": func(_ *runningRouter, endHandler func()) { endHandler() },
		"Close":       func(r *runningRouter, _ func()) { closeRouter(r) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, early, late, router := testdb.New(t), newOutlet(t), newOutlet(t), newRouter(t, patience)
			var r recorder
			f, _ := addForwarder(t, router, db, r.publisher(), asleep())
			router.AddConsumerHandler("early", "in", early, ignore)
			running := runRouter(t, router)
			router.AddConsumerHandler("late", "in", late, func(msg *message.Message) error {
				if msg.UUID == "last" {
					<-late.told
				}
				return insertLate(db, msg.UUID, msg.UUID)
			})
			ctx, endHandler := context.WithCancel(context.WithoutCancel(t.Context()))
			defer endHandler()
			require.NoError(t, router.RunHandlers(ctx))

			running.endContext()
			awaitEvent(t, early.told, "the context has ended")
			requireForwards(t, db, f, &r, "after the context")
			late.send(t, "handled")
			eventually(t, func() bool {
				f.Wake()
				return slices.Contains(r.confirmed(), "handled")
			})
			require.True(t, running.isRunning())
			late.send(t, "last")
			end(running, endHandler)
			running.await(t)
			require.Equal(t, []string{"after the context", "handled", "last"}, r.confirmed())
		})
	}
}

// Close bounds the wait for such a handler, too, even if its subscription does not end.
func TestRouterPlugin_HandlerThatWasAddedLaterDoesNotEnd(t *testing.T) {
	t.Parallel()
	db, late, router := testdb.New(t), newOutlet(t), newRouter(t, 200*time.Millisecond)
	late.stubborn = true
	var r recorder
	f, log := addForwarder(t, router, db, r.publisher(), asleep())
	running := runRouter(t, router)
	router.AddConsumerHandler("late", "in", late, ignore)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	defer cancel()
	require.NoError(t, router.RunHandlers(ctx))
	running.endContext()
	requireForwards(t, db, f, &r, "a-1")
	require.ErrorContains(t, router.Close(), "timeout")
	running.await(t)
	eventually(t, func() bool { return log.count(lineStopped) == 1 })
}

// A router that starts with forwarders only takes handlers later, and ends after them.
func TestRouterPlugin_WaitsForHandlersOfRouterThatHadNone(t *testing.T) {
	t.Parallel()
	inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
		db, in, router := testdb.New(t), newOutlet(t), newRouter(t, patience)
		var r recorder
		f, _ := addForwarder(t, router, db, r.publisher(), asleep())
		running := runRouter(t, router)
		requireForwards(t, db, f, &r, "alone")
		router.AddConsumerHandler("late", "in", in, func(*message.Message) error {
			<-in.told
			return insertLate(db, "late", "late")
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		require.NoError(t, router.RunHandlers(ctx))
		in.send(t, "1")
		closed := end(running)
		cancel()
		running.await(t)
		requireClosed(t, closed)
		require.Equal(t, []string{"alone", "late"}, r.confirmed())
	})
}

// Watermill ends a router whose handlers have all stopped; a forwarder does not keep it.
func TestRouterPlugin_RouterEndsWhenItsHandlersHaveStopped(t *testing.T) {
	t.Parallel()
	db, in, router := testdb.New(t), newOutlet(t), newRouter(t, patience)
	var r recorder
	f, log := addForwarder(t, router, db, r.publisher(), asleep())
	_, other := addForwarder(t, router, db, r.publisher(), asleep())
	finish := make(chan struct{})
	router.AddConsumerHandler("other", "in", in, func(*message.Message) error {
		<-finish
		return insertLate(db, "a", "a-1")
	})
	running := runRouter(t, router)
	awaitEvent(t, f.Running(), "the forwarder runs")
	in.send(t, "1")
	in.stop()
	eventually(t, func() bool { // whichever notices first
		const line = "ERROR All handlers but forwarders have stopped, closing the router"
		return log.count(line)+other.count(line) >= 1
	})
	require.True(t, running.isRunning(), "a message is being handled")
	close(finish)
	running.await(t)
	require.NoError(t, running.err)
	require.Equal(t, []string{"a-1"}, r.confirmed())
}

// A service that replaces a handler by another may have none for a moment.
func TestRouterPlugin_HandlersCanBeSwapped(t *testing.T) {
	t.Parallel()
	db, router := testdb.New(t), newRouter(t, patience)
	var r recorder
	f, log := addForwarder(t, router, db, r.publisher(), asleep())
	handler := router.AddConsumerHandler("old", "in", newOutlet(t), ignore)
	running := runRouter(t, router)
	replacement := newOutlet(t)
	router.AddConsumerHandler("new", "in", replacement, ignore)
	handler.Stop()
	awaitEvent(t, handler.Stopped(), "the old handler has stopped")
	requireForwards(t, db, f, &r, "between")
	require.NoError(t, router.RunHandlers(t.Context()))
	select {
	case <-running.returned:
		require.Fail(t, "the router has ended")
	case <-time.After(3 * time.Second): // longer than it may be without a handler
	}
	awaitEvent(t, replacement.send(t, "1").Acked(), "the new handler works")
	requireForwards(t, db, f, &r, "a-1")
	require.Zero(t, log.count(lineStopping))
	require.NoError(t, running.Close())
}

// Nothing of the router's sees the forwarder's messages. What wraps subscribers and
// publishers, before or after the plugin was added, works as it does without.
func TestRouterPlugin_IsNotSeenByMiddlewareNorDecorators(t *testing.T) {
	t.Parallel()
	inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
		db, router := testdb.New(t), newRouter(t, patience)
		pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}) // shared by two handlers
		t.Cleanup(func() { require.NoError(t, pubSub.Close()) })
		var (
			r               recorder
			seen, decorated atomic.Int64
			handled         = make(chan string, 10)
		)
		count := message.MessageTransformSubscriberDecorator(func(*message.Message) { decorated.Add(1) })
		router.AddSubscriberDecorators(count, subscribeTwice)
		f, log := addForwarder(t, router, db, r.publisher(), fast(forwarder.Config{}))
		router.AddSubscriberDecorators(count)
		router.AddPublisherDecorators(message.MessageTransformPublisherDecorator(func(*message.Message) { seen.Add(1) }))
		router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				seen.Add(1)
				return h(msg)
			}
		})
		router.AddPlugin(func(router *message.Router) error { // a later plugin's are outside ours
			router.AddSubscriberDecorators(count)
			return nil
		})
		for _, name := range []string{"one", "two"} {
			router.AddConsumerHandler(name, "in", pubSub, func(*message.Message) error {
				handled <- name
				return nil
			})
		}
		running := runRouter(t, router)
		insert(t, db, "orders", "a", ids("a", 10)...)
		requireDrained(t, db)
		require.NoError(t, pubSub.Publish("in", message.NewMessage("1", nil)))
		names := map[string]int{}
		for range 4 { // two handlers, each subscribed twice
			select {
			case name := <-handled:
				names[name]++
			case <-time.After(patience):
				require.Fail(t, "the message is not handled")
			}
		}
		closed := end(running)
		running.await(t)
		requireClosed(t, closed)
		require.Equal(t, map[string]int{"one": 2, "two": 2}, names)
		require.EqualValues(t, 4, seen.Load())
		require.EqualValues(t, 12, decorated.Load())
		require.Equal(t, ids("a", 10), r.unit("orders", "a"))
		require.Equal(t, 1, log.count("INFO Forwarder is running"))
		awaitEvent(t, f.Running(), "it ran")
	})
}

// subscribeTwice is a decorator as they are used to handle messages in parallel.
func subscribeTwice(sub message.Subscriber) (message.Subscriber, error) {
	return twice{sub}, nil
}

type twice struct{ message.Subscriber }

func (s twice) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	first, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	second, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for first != nil || second != nil {
			var (
				msg  *message.Message
				open bool
			)
			select {
			case msg, open = <-first:
				if !open {
					first = nil
				}
			case msg, open = <-second:
				if !open {
					second = nil
				}
			}
			if open {
				out <- msg
			}
		}
	}()
	return out, nil
}

// Watermill's router closes its handlers' subscribers with Close, and leaves them to
// whoever shares them at the end of its context. The forwarder does not change that.
func TestRouterPlugin_ContextLeavesSubscribersOpen(t *testing.T) {
	t.Parallel()
	db, router := testdb.New(t), newRouter(t, patience)
	f, _ := addForwarder(t, router, db, (&recorder{}).publisher(), fast(forwarder.Config{}))
	outlets := make([]*outlet, 10)
	for n := range outlets {
		outlets[n] = newOutlet(t)
		router.AddConsumerHandler(fmt.Sprintf("other %d", n), "in", outlets[n], ignore)
	}
	running := runRouter(t, router)
	awaitEvent(t, f.Running(), "the forwarder runs")
	for _, in := range outlets {
		awaitEvent(t, in.send(t, "1").Acked(), "the handler works")
	}
	running.endContext()
	running.await(t)
	for _, in := range outlets {
		require.Zero(t, in.closed.Load())
	}
}

// A router that fails to start, since a handler cannot subscribe, takes the forwarder
// with it.
func TestRouterPlugin_EndsWithRouterThatFailsToStart(t *testing.T) {
	t.Parallel()
	db, sound, broken, router := testdb.New(t), newOutlet(t), newOutlet(t), newRouter(t, 200*time.Millisecond)
	addForwarder(t, router, db, (&recorder{}).publisher(), fast(forwarder.Config{}))
	router.AddConsumerHandler("sound", "in", sound, ignore)
	router.AddConsumerHandler("broken", "in", broken, ignore)
	broken.fail <- errTest
	running := runRouter(t, router)
	running.await(t)
	require.ErrorIs(t, running.err, errTest)

	// Watermill starts what it had not come to, and can end its own goroutines only then.
	// That none is left of ours is what TestMain checks.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, router.RunHandlers(ctx))
	eventually(t, func() bool { return db.Stats().InUse == 0 })
}

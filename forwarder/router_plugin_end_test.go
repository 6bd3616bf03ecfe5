package forwarder_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// The forwarder works as long as a handler does, and sends what the handler writes with
// its last breath, whether that succeeds or fails.
func TestRouterPlugin_EndsAfterTheLastHandler(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{"acked": nil, "nacked": errTest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
				db, in, router := testdb.New(t), newOutlet(t), newRouter(t, patience)
				var r recorder
				f, log := addForwarder(t, router, db, r.publisher(), asleep())
				finish := make(chan struct{})
				router.AddConsumerHandler("slow", "in", in, func(*message.Message) error {
					<-finish
					if err := insertLate(db, "a", "last breath"); err != nil {
						return err
					}
					return result
				})
				router.AddConsumerHandler("idle", "in", newOutlet(t), func(*message.Message) error { return nil })
				running := runRouter(t, router)
				in.send(t, "1")

				closed := end(running)
				awaitEvent(t, in.told, "the handlers are told to end")
				insert(t, db, "orders", "a", "meanwhile")
				eventually(t, func() bool {
					f.Wake()
					return slices.Equal(r.confirmed(), []string{"meanwhile"})
				})
				require.Zero(t, log.count(lineStopping))
				require.True(t, running.isRunning())

				close(finish)
				running.await(t)
				requireClosed(t, closed)
				require.NoError(t, running.err)
				require.Equal(t, []string{"meanwhile", "last breath"}, r.confirmed())
				require.Empty(t, idsInOutbox(t, db, `true`))
				require.Equal(t, 1, log.count(lineStopped))
			})
		})
	}
}

// What handlers leave may be many batches in many lanes.
func TestRouterPlugin_SendsAllThatIsLeft(t *testing.T) {
	t.Parallel()
	for _, ordering := range []forwarder.Ordering{forwarder.PerKey, forwarder.None} {
		t.Run(string(ordering), func(t *testing.T) {
			t.Parallel()
			db, in, router := testdb.New(t), newOutlet(t), newRouter(t, patience)
			var r recorder
			cfg := asleep()
			cfg.Ordering, cfg.Workers, cfg.BatchSize = ordering, 4, 7
			f, _ := addForwarder(t, router, db, r.publisher(), cfg)
			router.AddConsumerHandler("prolific", "in", in, func(*message.Message) error {
				<-in.told
				for n := range 100 {
					if err := insertLate(db, fmt.Sprintf("key-%d", n), fmt.Sprintf("id-%d", n)); err != nil {
						return err
					}
				}
				return nil
			})
			running := runRouter(t, router)
			awaitEvent(t, f.Running(), "the forwarder runs")
			in.send(t, "1")
			require.NoError(t, running.Close())
			require.Empty(t, idsInOutbox(t, db, `true`))
			require.Len(t, r.confirmed(), 100)
		})
	}
}

// takeLanes waits for all lanes and keeps claims away until they are free again.
func takeLanes(t *testing.T, db *testdb.DB) (free func()) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	execute := func(function string) {
		_, err := conn.ExecContext(t.Context(), `SELECT `+function+`($1::bigint + lane)
			FROM generate_series(0, (SELECT lanes - 1 FROM `+db.Schema.Settings()+`)) AS lane`, db.Schema.LockBase())
		require.NoError(t, err)
	}
	execute(`pg_advisory_lock`)
	return func() {
		execute(`pg_advisory_unlock`)
		require.NoError(t, conn.Close())
	}
}

// A row that somebody has locked holds back its own unit only, in the last moment too.
func TestRouterPlugin_SendsWhatIsNotLocked(t *testing.T) {
	t.Parallel()
	db, router := testdb.New(t), newRouter(t, patience)
	var r recorder
	cfg := asleep()
	cfg.DatabaseTimeout = 2 * time.Second // a tenth of it is the wait for a lock
	f, _ := addForwarder(t, router, db, r.publisher(), cfg)
	running := runRouter(t, router)
	requireForwards(t, db, f, &r, "first")
	requireDrained(t, db)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	free := takeLanes(t, db) // a worker may be awake still
	insert(t, db, "orders", "a", ids("a", 2)...)
	insert(t, db, "orders", "b", "b-1")
	_, err = tx.ExecContext(t.Context(), `SELECT FROM `+db.Schema.Outbox()+` WHERE id = 'a-1' FOR UPDATE`)
	require.NoError(t, err)
	free()
	require.NoError(t, running.Close())
	require.Equal(t, []string{"first", "b-1"}, r.confirmed())
	require.Equal(t, ids("a", 2), idsInOutbox(t, db, `true`))
}

// A slow broker: Close waits for the batch in flight, which is settled and not sent
// again.
func TestRouterPlugin_FinishesTheBatchInFlight(t *testing.T) {
	t.Parallel()
	inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
		db, in, router := testdb.New(t), newOutlet(t), newRouter(t, patience)
		gate := newGate()
		_, log := addForwarder(t, router, db, gate, fast(forwarder.Config{Workers: 1}))
		router.AddConsumerHandler("other", "in", in, func(*message.Message) error { return nil })
		insert(t, db, "orders", "a", ids("a", 3)...)
		running := runRouter(t, router)
		awaitEvent(t, gate.publishing, "a batch is in flight")

		closed := end(running)
		eventually(t, func() bool { return log.count(lineStopping) == 1 })
		require.True(t, running.isRunning())
		require.Zero(t, log.count(lineStopped))

		close(gate.confirm)
		running.await(t)
		requireClosed(t, closed)
		require.Equal(t, ids("a", 3), gate.confirmed())
		require.Empty(t, idsInOutbox(t, db, `true`))
		require.Equal(t, 1, log.count(lineStopped))
	})
}

// A broker that is slower than the router is patient: the batch in flight is settled all
// the same, after the router has given up.
func TestRouterPlugin_FinishesTheBatchBeyondCloseTimeout(t *testing.T) {
	t.Parallel()
	inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
		db, router := testdb.New(t), newRouter(t, 200*time.Millisecond)
		gate := newGate()
		_, log := addForwarder(t, router, db, gate, fast(forwarder.Config{Workers: 1, BatchSize: 3}))
		insert(t, db, "orders", "a", ids("a", 5)...)
		running := runRouter(t, router)
		awaitEvent(t, gate.publishing, "a batch is in flight")
		closed := end(running)
		running.await(t)
		if closed != nil {
			require.ErrorContains(t, <-closed, "timeout")
		}
		require.Zero(t, log.count(lineStopped))
		close(gate.confirm)
		eventually(t, func() bool { return log.count(lineStopped) == 1 })
		require.Equal(t, ids("a", 3), gate.confirmed())
		require.Equal(t, []string{"a-4", "a-5"}, idsInOutbox(t, db, `true`), "nothing more was claimed")
	})
}

// gate is a slow broker: it confirms nothing until it is told.
type gate struct {
	publisherFunc
	recorder

	publishing chan struct{}
	confirm    chan struct{}
}

func newGate() *gate {
	g := &gate{publishing: make(chan struct{}, 1), confirm: make(chan struct{})}
	g.publisherFunc = func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		select {
		case g.publishing <- struct{}{}:
		default:
		}
		select {
		case <-g.confirm:
		case <-ctx.Done():
		}
		return g.publisher()(ctx, msgs)
	}
	return g
}

// Two forwarders, of two outboxes or of one, both end, and none waits for the other;
// beside a handler or alone.
func TestRouterPlugin_ForwardersDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	for name, handlers := range map[string]int{"alone": 0, "beside a handler": 1} {
		for what, outboxes := range map[string]int{"two outboxes": 2, "one outbox": 1} {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
					router := newRouter(t, patience)
					slowDB := testdb.New(t)
					quickDB := slowDB
					if outboxes == 2 {
						quickDB = testdb.New(t)
					}
					slow := newGate()
					var quick recorder
					first, slowLog := addForwarder(t, router, slowDB, slow, fast(forwarder.Config{Workers: 1}))
					insert(t, slowDB, "orders", "a", "a-1")
					for n := range handlers {
						router.AddConsumerHandler(fmt.Sprintf("other %d", n), "in", newOutlet(t), func(*message.Message) error { return nil })
					}
					second, quickLog := addForwarder(t, router, quickDB, quick.publisher(), asleep())
					running := runRouter(t, router)
					awaitEvent(t, first.Running(), "the first forwarder runs")
					awaitEvent(t, second.Running(), "the second forwarder runs")
					if outboxes == 2 {
						awaitEvent(t, slow.publishing, "a batch is in flight")
					}

					closed := end(running)
					if outboxes == 2 {
						eventually(t, func() bool { return quickLog.count(lineStopped) == 1 })
						require.Zero(t, slowLog.count(lineStopped))
						require.True(t, running.isRunning())
					}
					close(slow.confirm)
					running.await(t)
					requireClosed(t, closed)
					require.Equal(t, 1, slowLog.count(lineStopped))
					require.Equal(t, 1, quickLog.count(lineStopped))
					require.Empty(t, idsInOutbox(t, slowDB, `true`))
					require.Len(t, append(slow.confirmed(), quick.confirmed()...), 1)
				})
			})
		}
	}
}

// Handlers that do not end, and subscriptions that do not, are waited for as long as the
// router waits; then the forwarder ends, and so does the router, at the end of the
// context too.
func TestRouterPlugin_HandlersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]struct{ handler, subscription bool }{
		"handler":      {handler: true},
		"subscription": {subscription: true},
		"both":         {handler: true, subscription: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
				db, in, router := testdb.New(t), newOutlet(t), newRouter(t, 200*time.Millisecond)
				in.stubborn = hang.subscription
				var r recorder
				f, log := addForwarder(t, router, db, r.publisher(), fast(forwarder.Config{}))
				finish := make(chan struct{})
				t.Cleanup(func() { close(finish) })
				router.AddConsumerHandler("hanging", "in", in, func(*message.Message) error {
					if hang.handler {
						<-finish
					}
					return nil
				})
				running := runRouter(t, router)
				awaitEvent(t, f.Running(), "the forwarder runs")
				in.send(t, "1")

				closed := end(running)
				running.await(t)
				if closed != nil {
					require.ErrorContains(t, <-closed, "timeout")
				}
				eventually(t, func() bool { return log.count(lineStopped) == 1 })
				require.Equal(t, 1, log.count("INFO Forwarder waits no more for the router's handlers"))
			})
		})
	}
}

// Rows may come for ever, from elsewhere: the end does not wait for the last of them.
func TestRouterPlugin_EndsAlthoughRowsKeepComing(t *testing.T) {
	t.Parallel()
	for name, closeTimeout := range map[string]time.Duration{
		"as its own time is over":     patience,
		"as the router waits no more": 200 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, router := testdb.New(t), newRouter(t, closeTimeout)
			publisher := publisherFunc(func(_ context.Context, msgs []forwarder.Outgoing) []error {
				if err := insertLate(db, "a", "a-1"); err != nil {
					return []error{err}
				}
				return make([]error, len(msgs))
			})
			f, log := addForwarder(t, router, db, publisher, fast(forwarder.Config{Workers: 1}))
			insert(t, db, "orders", "a", "a-1")
			running := runRouter(t, router)
			awaitEvent(t, f.Running(), "the forwarder runs")
			err := running.Close()
			running.await(t)
			if closeTimeout == patience {
				require.NoError(t, err)
			}
			eventually(t, func() bool { return log.count(lineStopped) == 1 })
			require.NotEmpty(t, idsInOutbox(t, db, `true`))
		})
	}
}

// Whoever closes a router does not want to wait for a broker that is away.
func TestRouterPlugin_DoesNotTryBrokerThatIsAwayAtTheEnd(t *testing.T) {
	t.Parallel()
	db, router := testdb.New(t), newRouter(t, patience)
	var tries atomic.Int64
	r := recorder{fail: func(forwarder.Outgoing) error {
		tries.Add(1)
		return forwarder.Unavailable(errTest)
	}}
	cfg := asleep()
	cfg.RetryInitial, cfg.RetryMax = time.Hour, time.Hour
	_, log := addForwarder(t, router, db, r.publisher(), cfg)
	insert(t, db, "orders", "a", "a-1")
	running := runRouter(t, router)
	eventually(t, func() bool { return log.count("ERROR Broker is unavailable, messages stay in the outbox") == 1 })
	require.NoError(t, running.Close())
	require.EqualValues(t, 1, tries.Load())
	require.Equal(t, []string{"a-1"}, idsInOutbox(t, db, `attempts = 0`))
}

// A publisher that does not return, whatever its context says: the router is not held up
// beyond CloseTimeout, and the forwarder says so when its own bound is over.
func TestRouterPlugin_SaysWhereItIsStuck(t *testing.T) {
	t.Parallel()
	inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
		db, router := testdb.New(t), newRouter(t, 200*time.Millisecond)
		publishing, hang := make(chan struct{}), make(chan struct{})
		publisher := publisherFunc(func(_ context.Context, msgs []forwarder.Outgoing) []error {
			close(publishing)
			<-hang
			return make([]error, len(msgs))
		})
		cfg := fast(forwarder.Config{Workers: 1, PublishTimeout: 10 * time.Millisecond, DatabaseTimeout: 200 * time.Millisecond})
		_, log := addForwarder(t, router, db, publisher, cfg)
		insert(t, db, "orders", "a", "a-1")
		running := runRouter(t, router)
		awaitEvent(t, publishing, "a batch is in flight")
		end(running)
		running.await(t)
		eventually(t, func() bool { return log.count(lineFailed) == 1 })
		close(hang)
		eventually(t, func() bool { return log.count(lineStopped) == 1 })
	})
}

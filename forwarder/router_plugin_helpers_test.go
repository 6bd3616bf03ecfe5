package forwarder_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

const (
	lineStopping = "INFO Forwarder is stopping, it finishes the batches in flight"
	lineStopped  = "INFO Forwarder has stopped"
	lineFailed   = "ERROR Forwarder has failed, its router is closed"
)

// newRouter returns a router that closes in that time.
func newRouter(t *testing.T, closeTimeout time.Duration) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: closeTimeout}, watermill.NopLogger{})
	require.NoError(t, err)
	return router
}

// addForwarder returns a forwarder on the router, and what it logs.
func addForwarder(
	t *testing.T, router *message.Router, db *testdb.DB, pub message.Publisher, cfg forwarder.Config,
) (*forwarder.Forwarder, *journal) {
	t.Helper()
	cfg.Schema = db.Schema
	log := &journal{}
	f, err := forwarder.New(db.DB, pub, cfg, log)
	require.NoError(t, err)
	router.AddPlugin(f.RouterPlugin)
	return f, log
}

// asleep is for forwarders that look for rows when they are woken, and at the end.
func asleep() forwarder.Config {
	cfg := fast(forwarder.Config{Workers: 1})
	cfg.PollInterval = time.Hour
	return cfg
}

// runningRouter is a router under way.
type runningRouter struct {
	*message.Router

	endContext context.CancelFunc
	// returned is closed when Run has returned err.
	returned chan struct{}
	err      error
}

// runRouter returns when the router is running, or has failed to.
func runRouter(t *testing.T, router *message.Router) *runningRouter {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &runningRouter{Router: router, endContext: cancel, returned: make(chan struct{})}
	go func() {
		defer close(r.returned)
		r.err = router.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		r.await(t)
	})
	select {
	case <-router.Running():
	case <-r.returned:
	case <-time.After(patience):
		require.Fail(t, "the router did not start")
	}
	return r
}

// await waits until Run has returned.
func (r *runningRouter) await(t *testing.T) {
	t.Helper()
	select {
	case <-r.returned:
	case <-time.After(patience):
		require.Fail(t, "the router did not end")
	}
}

func (r *runningRouter) isRunning() bool {
	select {
	case <-r.returned:
		return false
	default:
		return true
	}
}

// inBothWays runs a test for both ends that a router can be given. end returns at once;
// closed, if there was a call of Close, gets what it returned.
func inBothWays(t *testing.T, test func(t *testing.T, end func(r *runningRouter) (closed <-chan error))) {
	t.Helper()
	t.Run("Close", func(t *testing.T) {
		t.Parallel()
		test(t, closeRouter)
	})
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		test(t, endContext)
	})
}

func closeRouter(r *runningRouter) <-chan error {
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	return closed
}

func endContext(r *runningRouter) <-chan error {
	r.endContext()
	return nil
}

// requireClosed checks what Close returned, if it was called.
func requireClosed(t *testing.T, closed <-chan error) {
	t.Helper()
	if closed == nil {
		return
	}
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "Close did not return")
	}
}

// awaitEvent waits for what a test is told.
func awaitEvent[T any](t *testing.T, event <-chan T, what string) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(patience):
		require.Fail(t, "not in time: "+what)
	}
}

// insertLate is insert for handlers, which may outlive the test's context.
func insertLate(db *testdb.DB, key, id string) error {
	_, err := db.Exec( //nolint:noctx // the handler's own may have ended, which is what the tests are about
		`INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload) VALUES ($1, 'orders', $2, 'x')`, id, key)
	return err
}

// outlet is a Subscriber that a test holds in its hands. It delivers to one handler.
type outlet struct {
	messages   chan *message.Message
	subscribed atomic.Int64
	closed     atomic.Int64
	// stubborn has it keep its channel open, whatever it is told.
	stubborn bool
	// fail, unless it is empty, is what the next call of Subscribe returns.
	fail chan error
	// told is closed when it is told to stop.
	told chan struct{}

	tell, end sync.Once
}

func newOutlet(t *testing.T) *outlet {
	t.Helper()
	o := &outlet{messages: make(chan *message.Message), fail: make(chan error, 1), told: make(chan struct{})}
	t.Cleanup(o.stop)
	return o
}

func (o *outlet) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	select {
	case err := <-o.fail:
		return nil, err
	default:
	}
	o.subscribed.Add(1)
	context.AfterFunc(ctx, o.hear)
	return o.messages, nil
}

func (o *outlet) Close() error {
	o.closed.Add(1)
	o.hear()
	return nil
}

func (o *outlet) hear() {
	o.tell.Do(func() { close(o.told) })
	if !o.stubborn {
		o.stop()
	}
}

func (o *outlet) stop() { o.end.Do(func() { close(o.messages) }) }

// send waits until the handler has taken a message.
func (o *outlet) send(t *testing.T, id string) *message.Message {
	t.Helper()
	msg := message.NewMessage(id, nil)
	select {
	case o.messages <- msg:
	case <-time.After(patience):
		require.Fail(t, "nobody takes the message")
	}
	return msg
}

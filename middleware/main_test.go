package middleware_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
)

const (
	wait = 10 * time.Second
	tick = 5 * time.Millisecond

	maxConns = 20
)

var errHandler = errors.New("the handler failed")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testBundle is what most tests need: a migrated schema with a table for the
// handler's effects, a pool of the driver under test, and a config for the inbox.
type testBundle struct {
	db         *testdb.DB
	driver     string
	pool       database
	config     middleware.InboxConfig
	duplicates atomic.Int64
	runs       atomic.Int64
}

func setup(t *testing.T, driver string) *testBundle {
	t.Helper()
	db := testdb.New(t)
	// Deferred, so that a test can make the commit itself fail.
	_, err := db.ExecContext(t.Context(), `CREATE TABLE `+db.Schema.Schema+`.effects (
		event_id text NOT NULL, UNIQUE (event_id) DEFERRABLE INITIALLY DEFERRED)`)
	require.NoError(t, err)
	store, err := inbox.NewStore(inbox.Config{Schema: db.Schema})
	require.NoError(t, err)
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.Schema}, nil)
	require.NoError(t, err)
	b := &testBundle{db: db, driver: driver}
	b.config = middleware.InboxConfig{
		Store:       store,
		Consumer:    "payments",
		Outbox:      publisher,
		OnDuplicate: func(context.Context, inbox.Key) { b.duplicates.Add(1) },
	}
	b.open(t, db.DSN, maxConns)
	return b
}

// open lets the inbox use a pool of its own, with other settings.
func (b *testBundle) open(t *testing.T, dsn string, maxConns int) {
	t.Helper()
	b.pool = openDatabase(t, b.driver, dsn, maxConns)
	b.pool.configure(&b.config)
}

func forEachDriver(t *testing.T, test func(t *testing.T, b *testBundle)) {
	t.Helper()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			test(t, setup(t, driver))
		})
	}
}

func (b *testBundle) inbox(t *testing.T) *middleware.Inbox {
	t.Helper()
	i, err := middleware.NewInbox(b.config, nil)
	require.NoError(t, err)
	return i
}

// wrap decorates h with the inbox of the bundle's config.
func (b *testBundle) wrap(t *testing.T, h message.HandlerFunc) message.HandlerFunc {
	t.Helper()
	return b.inbox(t).Middleware(h)
}

// debit is a handler with one effect, in the transaction that it finds in the
// message's context.
func (b *testBundle) debit(msg *message.Message) ([]*message.Message, error) {
	b.runs.Add(1)
	if !b.pool.inTx(msg.Context()) {
		return nil, errors.New("no transaction of the driver in the message's context")
	}
	return nil, b.pool.exec(msg.Context(), `INSERT INTO `+b.effects()+` (event_id) VALUES ($1)`, msg.UUID)
}

// then runs debit and after it next, with the transaction.
func (b *testBundle) then(next func(msg *message.Message) ([]*message.Message, error)) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if _, err := b.debit(msg); err != nil {
			return nil, err
		}
		return next(msg)
	}
}

func (b *testBundle) effects() string { return b.db.Schema.Schema + ".effects" }

// counts are the rows of the three tables that one transaction fills.
type counts struct{ keys, effects, outbox int }

func (b *testBundle) counts(t *testing.T) counts {
	t.Helper()
	var c counts
	err := b.db.QueryRowContext(t.Context(), `SELECT
		(SELECT count(*) FROM `+b.db.Schema.Inbox()+`),
		(SELECT count(*) FROM `+b.effects()+`),
		(SELECT count(*) FROM `+b.db.Schema.Outbox()+`)`).Scan(&c.keys, &c.effects, &c.outbox)
	require.NoError(t, err)
	return c
}

// requireWaiting returns once somebody who records in this test's inbox waits for a lock.
func (b *testBundle) requireWaiting(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waiting int
		err := b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_catalog.pg_stat_activity
			WHERE wait_event_type = 'Lock' AND strpos(query, $1) > 0`, b.db.Schema.RecordFunction()).Scan(&waiting)
		return err == nil && waiting > 0
	}, wait, tick)
}

func newMessage(id string) *message.Message {
	return message.NewMessage(id, []byte(`{"event":"created"}`))
}

// route says how a handler stands in a router.
type route struct {
	handler   string // default "payments"
	subscribe string // default "orders"
	publish   string
	publisher message.Publisher // nil: a consumer without publish topic
}

// deliver runs a router with the middlewares and h, sends it messages one after the
// other and returns what came out of the outermost middleware for each.
func (r route) deliver(t *testing.T, h message.HandlerFunc, middlewares []message.HandlerMiddleware, msgs ...*message.Message) []error {
	t.Helper()
	if r.handler == "" {
		r.handler = "payments"
	}
	if r.subscribe == "" {
		r.subscribe = "orders"
	}
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	router := message.NewDefaultRouter(nil)
	results := make(chan error, len(msgs))
	router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			results <- err
			return produced, nil // acks: each message is delivered once
		}
	})
	router.AddMiddleware(middlewares...)
	if r.publisher == nil {
		router.AddConsumerHandler(r.handler, r.subscribe, pubSub, func(msg *message.Message) error {
			_, err := h(msg)
			return err
		})
	} else {
		router.AddHandler(r.handler, r.subscribe, pubSub, r.publish, r.publisher, h)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()

	errs := make([]error, len(msgs))
	for i, msg := range msgs {
		require.NoError(t, pubSub.Publish(r.subscribe, msg))
		errs[i] = receive(t, results)
	}
	require.NoError(t, router.Close())
	require.NoError(t, receive(t, ended))
	return errs
}

// receive fails the test where nothing comes.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(wait):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

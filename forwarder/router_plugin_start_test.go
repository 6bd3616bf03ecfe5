package forwarder_test

import (
	"database/sql"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// A forwarder that can never work keeps the router from starting.
func TestRouterPlugin_RouterNeedsFitTables(t *testing.T) {
	t.Parallel()
	db, in, router := testdb.NewEmpty(t), newOutlet(t), newRouter(t, patience)
	f, _ := addForwarder(t, router, db, (&recorder{}).publisher(), forwarder.Config{})
	router.AddConsumerHandler("other", "in", in, func(*message.Message) error { return nil })
	require.ErrorIs(t, router.Run(t.Context()), schema.ErrNotMigrated)
	require.Zero(t, in.subscribed.Load())
	require.Len(t, router.Handlers(), 1, "nothing was added")
	require.ErrorIs(t, f.Run(t.Context()), forwarder.ErrAlreadyRun)
}

// lateDatabase is a Postgres that does not answer yet.
type lateDatabase struct {
	answers atomic.Bool
	dialled atomic.Int64
	// silence, if it is set, ends when the server says anything at all.
	silence chan struct{}
}

func (d *lateDatabase) Dial(network, address string) (net.Conn, error) {
	return d.DialTimeout(network, address, patience)
}

func (d *lateDatabase) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	d.dialled.Add(1)
	if d.silence != nil {
		<-d.silence
	}
	if !d.answers.Load() {
		return nil, errors.New("test: no answer yet")
	}
	return net.DialTimeout(network, address, timeout) //nolint:noctx // pq's interface has none
}

func (d *lateDatabase) open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	connector, err := pq.NewConnector(dsn)
	require.NoError(t, err)
	connector.Dialer(d)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// A database that is away does not keep the router from starting, and is waited for.
func TestRouterPlugin_WaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	db, router := testdb.New(t), newRouter(t, patience)
	insert(t, db, "orders", "a", "a-1")
	var late lateDatabase
	away := *db
	away.DB = late.open(t, db.DSN)
	var r recorder
	addForwarder(t, router, &away, r.publisher(), fast(forwarder.Config{}))
	running := runRouter(t, router)
	eventually(t, func() bool { return late.dialled.Load() > 2 })
	late.answers.Store(true)
	requireDrained(t, db)
	require.NoError(t, running.Close())
}

// Nor does one that says nothing, whatever time it was given.
func TestRouterPlugin_StartsBesideSilentDatabase(t *testing.T) {
	t.Parallel()
	db, router := testdb.New(t), newRouter(t, patience)
	insert(t, db, "orders", "a", "a-1")
	late := lateDatabase{silence: make(chan struct{})}
	silent := *db
	silent.DB = late.open(t, db.DSN)
	cfg := fast(forwarder.Config{})
	cfg.DatabaseTimeout = time.Second
	addForwarder(t, router, &silent, (&recorder{}).publisher(), cfg)
	running := runRouter(t, router)
	require.True(t, running.isRunning())
	late.answers.Store(true)
	close(late.silence)
	requireDrained(t, db)
	require.NoError(t, running.Close())
}

func TestRouterPlugin_EndsWhileItWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
		db, router := testdb.New(t), newRouter(t, patience)
		var late lateDatabase
		db.DB = late.open(t, db.DSN)
		addForwarder(t, router, db, (&recorder{}).publisher(), fast(forwarder.Config{}))
		running := runRouter(t, router)
		eventually(t, func() bool { return late.dialled.Load() > 2 })
		closed := end(running)
		running.await(t)
		requireClosed(t, closed)
	})
}

// A database that turns out to be unfit later: a router whose events go nowhere does
// not go on as if nothing were the matter.
func TestRouterPlugin_UnfitDatabaseClosesTheRouter(t *testing.T) {
	t.Parallel()
	db, in, router := testdb.NewEmpty(t), newOutlet(t), newRouter(t, patience)
	var late lateDatabase
	db.DB = late.open(t, db.DSN)
	_, log := addForwarder(t, router, db, (&recorder{}).publisher(), fast(forwarder.Config{}))
	router.AddConsumerHandler("other", "in", in, func(*message.Message) error { return nil })
	running := runRouter(t, router)
	eventually(t, func() bool { return late.dialled.Load() > 2 })
	require.True(t, running.isRunning())
	late.answers.Store(true)
	running.await(t)
	require.Equal(t, 1, log.count(lineFailed))
	require.NoError(t, running.err)
	require.EqualValues(t, 1, in.closed.Load())
}

func TestRouterPlugin_ForwarderRunsOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	newForwarder := func() *forwarder.Forwarder {
		f, err := forwarder.New(db.DB, (&recorder{}).publisher(), forwarder.Config{Schema: db.Schema}, nil)
		require.NoError(t, err)
		return f
	}
	onRouter := func(plugins ...message.RouterPlugin) *message.Router {
		router := newRouter(t, patience)
		router.AddPlugin(plugins...)
		return router
	}

	twice := newForwarder()
	require.ErrorIs(t, onRouter(twice.RouterPlugin, twice.RouterPlugin).Run(t.Context()), forwarder.ErrAlreadyRun)

	shared := newForwarder()
	first := runRouter(t, onRouter(shared.RouterPlugin))
	require.ErrorIs(t, onRouter(shared.RouterPlugin).Run(t.Context()), forwarder.ErrAlreadyRun)
	require.ErrorIs(t, shared.Run(t.Context()), forwarder.ErrAlreadyRun)
	require.NoError(t, first.Close())

	alone, _ := start(t, db, (&recorder{}).publisher(), forwarder.Config{})
	require.ErrorIs(t, onRouter(alone.RouterPlugin).Run(t.Context()), forwarder.ErrAlreadyRun)

	late := newForwarder()
	router := runRouter(t, onRouter(newForwarder().RouterPlugin))
	require.ErrorContains(t, late.RouterPlugin(router.Router), "the router runs already")
	require.Len(t, router.Handlers(), 1)
	for name := range router.Handlers() {
		require.Regexp(t, `^outbox-forwarder-.`, name)
	}
	require.NoError(t, router.Close())
}

// A router that was closed before it ran returns at once. Nothing is left behind, as
// TestMain checks.
func TestRouterPlugin_RouterClosedBeforeItRan(t *testing.T) {
	t.Parallel()
	db, router := testdb.New(t), newRouter(t, patience)
	addForwarder(t, router, db, (&recorder{}).publisher(), fast(forwarder.Config{}))
	require.NoError(t, router.Close())
	require.NoError(t, router.Run(t.Context()))
	eventually(t, func() bool { return db.Stats().InUse == 0 })
}

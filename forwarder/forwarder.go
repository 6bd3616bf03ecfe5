package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"

	"github.com/watermill-outbox/outbox/schema"
)

// ErrAlreadyRun says that Run or RouterPlugin was called before: make a new Forwarder.
var ErrAlreadyRun = errors.New("forwarder: Run or RouterPlugin was called before")

// ErrStuck says that a call into the database driver or the publisher did not return
// in time when Run was to end. Its goroutine ends with that call; its rows are freed by
// the database, and are sent again.
var ErrStuck = errors.New("forwarder: a call into the database or the broker does not return")

// Forwarder publishes the committed rows of an outbox. Its methods are safe for
// concurrent use.
type Forwarder struct {
	config    Config
	db        *sql.DB
	publisher message.Publisher
	logger    watermill.LoggerAdapter

	started atomic.Bool
	running chan struct{}
	wake    chan struct{}
	sleeper *sleeper // nil: nobody wakes it
}

// New returns a Forwarder that reads from db and publishes to pub: in batches if pub
// is a BatchPublisher, else one message at a time. It closes neither. The pool must
// allow as many connections as there are workers. A nil logger logs nothing. Errors
// wrap ErrInvalidConfig or schema.ErrInvalidName.
func New(db *sql.DB, pub message.Publisher, cfg Config, logger watermill.LoggerAdapter) (*Forwarder, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: db is nil", ErrInvalidConfig)
	}
	if pub == nil {
		return nil, fmt.Errorf("%w: the publisher is nil", ErrInvalidConfig)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	if limit := db.Stats().MaxOpenConnections; limit > 0 && limit < cfg.Workers {
		return nil, fmt.Errorf("%w: Workers is %d, but the pool allows only %d connections", ErrInvalidConfig, cfg.Workers, limit)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	if cfg.Source != nil {
		cfg.ListenDSN = "" // nobody looks for rows
	}
	sleeper, err := newSleeper(cfg, newListener(cfg, db, logger))
	if err != nil {
		return nil, err
	}
	return &Forwarder{
		sleeper:   sleeper,
		config:    cfg,
		db:        db,
		publisher: pub,
		logger:    logger,
		running:   make(chan struct{}),
		wake:      make(chan struct{}, cfg.Workers),
	}, nil
}

// Run forwards until ctx ends. Then it finishes the batches in flight, within
// PublishTimeout and five times DatabaseTimeout, and returns nil; ErrStuck if a driver
// or a publisher has not come back by then. A database that is away
// is waited for, at the start as later; failures are logged and tried again. Run
// returns an error only where nothing could ever be forwarded: the tables are missing
// or of another version (schema.ErrNotMigrated, schema.ErrIncomplete,
// schema.ErrNewerSchema), the database or the sequence is not fit (schema.ErrNotUTF8,
// schema.ErrSequenceCache), the driver's settings do not go with a pooler
// (schema.ErrPreparedStatement), the Source cannot work (ErrUnfitSource), or Run was called before
// (ErrAlreadyRun).
func (f *Forwarder) Run(ctx context.Context) error {
	if !f.started.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	return f.runBounded(ctx, nil, 0)
}

// runBounded is run, but does not wait for ever once ctx has ended. The time that
// afterwards may take is its own.
func (f *Forwarder) runBounded(ctx context.Context, afterwards func(*worker), itsTime time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- f.run(ctx, afterwards) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	f.logger.Info("Forwarder is stopping, it finishes the batches in flight", nil)
	// lib/pq waits for the answer of a server that is silent, whatever its context says.
	stuck := time.NewTimer(f.config.PublishTimeout + 5*f.config.DatabaseTimeout + itsTime)
	defer stuck.Stop()
	select {
	case err := <-done:
		return err
	case <-stuck.C:
		return ErrStuck
	}
}

// run lets workers forward until ctx ends. When all have ended, afterwards gets one
// more, if it is given.
func (f *Forwarder) run(ctx context.Context, afterwards func(*worker)) error {
	version, err := f.waitForDatabase(ctx)
	if errors.Is(err, errStopped) {
		return nil
	}
	if err != nil {
		return err
	}
	var workers, others sync.WaitGroup
	if f.sleeper != nil {
		f.sleeper.open()
		others.Go(func() { f.sleeper.ears.run(ctx) })
	}
	newWorker := f.workers(version)
	if f.config.Source != nil {
		feed, parked := newFeed(f.config.Source, newWorker, f.logger), newParked(newWorker())
		workers.Go(func() { feed.run(ctx) })
		workers.Go(func() { parked.run(ctx) })
		others.Go(func() { f.config.Source.Watch(ctx) })
	} else {
		f.startWorkers(ctx, newWorker, &workers)
	}
	prober, patrol := newProber(newWorker()), newPatrol(newWorker())
	others.Go(func() { prober.run(ctx) })
	others.Go(func() { patrol.run(ctx) })
	others.Go(func() {
		newRetention(f.db, f.config.Schema, f.config.Retention, f.config.DatabaseTimeout, f.logger).run(ctx)
	})
	close(f.running)
	f.logger.Info("Forwarder is running", watermill.LogFields{
		"outbox":   f.config.Schema.Outbox(),
		"ordering": f.config.Ordering,
		"batches":  f.batches(),
		"workers":  f.config.Workers,
	})
	workers.Wait()
	if f.sleeper != nil {
		if err := f.sleeper.close(ctx); err != nil {
			f.logger.Error("Forwarder cannot wake other replicas", err, nil)
		}
	}
	if afterwards != nil {
		afterwards(newWorker()) // without waiting for a broker that does not answer
	}
	others.Wait()
	f.logger.Info("Forwarder has stopped", nil)
	return nil
}

// startWorkers starts those that read the table: one more than Workers, for hot lanes.
func (f *Forwarder) startWorkers(ctx context.Context, newWorker func() *worker, workers *sync.WaitGroup) {
	for n := range f.config.Workers + 1 {
		w := newWorker()
		w.hot, w.tendsHot = w.lookout.hot, n == f.config.Workers
		workers.Go(func() { w.run(ctx) })
	}
}

// Running returns a channel that is closed once Run has found the database in order
// and started its workers.
func (f *Forwarder) Running() <-chan struct{} { return f.running }

// Wake makes an idle worker look for rows at once. Call it after a commit, in the
// same process, to save the rest of a PollInterval. It never blocks.
func (f *Forwarder) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// batches says whether the publisher takes batches. A decorator that hides it costs
// speed without a word.
func (f *Forwarder) batches() bool {
	publishers := []message.Publisher{f.publisher}
	if routes, ok := f.publisher.(*Routes); ok {
		publishers = slices.Collect(maps.Values(routes.brokers))
	}
	return !slices.ContainsFunc(publishers, func(p message.Publisher) bool {
		_, ok := p.(BatchPublisher)
		return !ok
	})
}

// workers returns a function that makes workers which share what they know of outages.
func (f *Forwarder) workers(serverVersion int) func() *worker {
	marks := &marks{}
	away := newAbsences(f.config, marks, f.logger)
	registry := newRegistry(f.db, f.config)
	database := &outage{what: "Database", logger: f.logger}
	broker := &outage{what: "Broker", logger: f.logger}
	routes, _ := f.publisher.(*Routes)
	refused := &atomic.Bool{}
	paces, suspects := &paces{config: f.config}, &suspects{}
	lookout := newLookout(f.config, f.db, marks, f.wake)
	lookout.sleeper = f.sleeper
	lookout.trouble = &outage{what: "Wake-up by writers", logger: f.logger}
	var newWorker func() *worker
	newWorker = func() *worker {
		return &worker{
			config:    f.config,
			db:        f.db,
			publisher: batchPublisher(f.publisher),
			claimer:   newClaimer(f.config, marks, f.db),
			settler:   newSettler(f.config),
			routes:    routes,
			away:      away,
			registry:  registry,
			database:  database,
			broker:    broker,
			paces:     paces,
			suspects:  suspects,
			lookout:   lookout,
			lane:      anyLane,
			refused:   refused,
			logger:    f.logger,

			serverVersion: serverVersion,
			another:       newWorker,
		}
	}
	return newWorker
}

// batchPublisher returns pub as a BatchPublisher, for one worker.
func batchPublisher(pub message.Publisher) BatchPublisher {
	switch publisher := pub.(type) {
	case *Routes:
		return newRoutedPublisher(publisher)
	case BatchPublisher:
		return publisher
	default:
		return &sequential{publisher: pub}
	}
}

// errStopped says that ctx ended before the forwarder had started.
var errStopped = errors.New("forwarder: stopped")

// waitForDatabase returns the server's version once the tables are found fit.
func (f *Forwarder) waitForDatabase(ctx context.Context) (version int, err error) {
	wait := f.config.newBackOff()
	for ctx.Err() == nil {
		version, err := f.inspectDatabase(ctx)
		if err == nil {
			return version, nil
		}
		if isUnfit(err) {
			return 0, fmt.Errorf("forwarder: %w", err)
		}
		f.pauseBeforeStart(ctx, wait, err)
	}
	return 0, errStopped
}

func (f *Forwarder) pauseBeforeStart(ctx context.Context, wait backoff.BackOff, err error) {
	if ctx.Err() != nil {
		return
	}
	next := f.config.next(wait)
	f.logger.Error(databaseTrouble(err)+", the forwarder waits to start", err, watermill.LogFields{"retry_in": next})
	sleep(ctx, next, nil)
}

func (f *Forwarder) inspectDatabase(ctx context.Context) (version int, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.config.DatabaseTimeout)
	defer cancel()
	if err := f.config.Schema.Check(ctx, f.db); err != nil {
		return 0, err //nolint:wrapcheck // waitForDatabase wraps it
	}
	if f.config.Source != nil {
		if err := f.config.Source.Check(ctx, f.db); err != nil {
			return 0, fmt.Errorf("source: %w", err)
		}
	}
	text, err := f.readVersion(ctx)
	if err != nil {
		return 0, err
	}
	version, err = strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read server_version_num: %w", err)
	}
	return version, nil
}

// readVersion reads the server's version, once the role's privileges are found to do.
func (f *Forwarder) readVersion(ctx context.Context) (version string, err error) {
	err = inReadOnlyTx(ctx, f.db, func(tx *sql.Tx) error {
		if err := requirePrivileges(ctx, tx, f.config.Schema); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, `SELECT pg_catalog.current_setting('server_version_num')`).Scan(&version); err != nil {
			return fmt.Errorf("read server_version_num: %w", err)
		}
		return nil
	})
	return version, err
}

// inReadOnlyTx keeps statements and their parameters together behind a pooler, as
// schema.Postgres.Check does.
func inReadOnlyTx(ctx context.Context, db *sql.DB, read func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback()
	return schema.Explain(read(tx))
}

// isUnfit says that waiting cannot help.
func isUnfit(err error) bool {
	for _, reason := range []error{
		schema.ErrInvalidName, schema.ErrNotUTF8, schema.ErrNotMigrated, schema.ErrNewerSchema,
		schema.ErrForeignTable, schema.ErrIncomplete, schema.ErrSequenceCache, schema.ErrPreparedStatement,
		ErrUnfitSource,
	} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

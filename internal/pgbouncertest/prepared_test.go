package pgbouncertest_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/middleware"
	"github.com/watermill-outbox/outbox/schema"
)

// What each of the ways into the database says where the driver's prepared statements
// are lost, or somebody else has made them.
func TestPreparedStatementsFailWithTheSettingToChange(t *testing.T) { //nolint:tparallel // they share server connections
	t.Parallel()
	type operation func(ctx context.Context, db *sql.DB, s schema.Postgres) error
	check := func(ctx context.Context, db *sql.DB, s schema.Postgres) error { return s.Check(ctx, db) }
	operations := map[string]operation{
		"migrate": func(ctx context.Context, db *sql.DB, s schema.Postgres) error { return s.Migrate(ctx, db) },
		"check":   check,
		"publish one": func(ctx context.Context, db *sql.DB, s schema.Postgres) error {
			return publish(ctx, db, s, newMessage("a", 1))
		},
		"publish many": func(ctx context.Context, db *sql.DB, s schema.Postgres) error {
			return publish(ctx, db, s, newMessage("a", 1), newMessage("a", 2))
		},
		"record": func(ctx context.Context, db *sql.DB, s schema.Postgres) error {
			store, err := inbox.NewStore(inbox.Config{Schema: s})
			if err != nil {
				return err
			}
			return inTx(ctx, db, func(tx *sql.Tx) error {
				_, err := store.Record(ctx, tx, inbox.Key{Consumer: "c", EventID: watermill.NewUUID()})
				return err
			})
		},
		"retention": func(ctx context.Context, db *sql.DB, s schema.Postgres) error {
			store, err := inbox.NewStore(inbox.Config{Schema: s})
			if err != nil {
				return err
			}
			_, err = store.DeleteOlderThan(ctx, db, time.Hour)
			return err
		},
		"middleware": func(ctx context.Context, db *sql.DB, s schema.Postgres) error {
			store, err := inbox.NewStore(inbox.Config{Schema: s})
			if err != nil {
				return err
			}
			i, err := middleware.NewInbox(middleware.InboxConfig{DB: db, Store: store, Consumer: "c"}, nil)
			if err != nil {
				return err
			}
			handle := i.NoPublish(func(*message.Message) error { return nil }) //nolint:contextcheck // the message carries it
			return handle(message.NewMessageWithContext(ctx, watermill.NewUUID(), nil))
		},
		"forwarder": startAndStop,
	}
	db := newMigrated(t)
	for name, operation := range operations {
		t.Run(name, func(t *testing.T) {
			db.endServerConnections(t) // and what was prepared on them
			first, second := db.openOne(t, brokenMode), db.openOne(t, brokenMode)
			server := backend(t, first)
			alone := operation
			if name == "forwarder" {
				alone = check // which it begins with; as it ends, it closes its connection
			}
			require.NoError(t, alone(t.Context(), first, db.schema), "nobody shares the connection")

			err := operation(t.Context(), second, db.schema)
			requireSettingNamed(t, err, "42P05")

			taken := db.takeServer(t, server)
			err = operation(t.Context(), first, db.schema)
			requireSettingNamed(t, err, "26000")
			require.NoError(t, taken.Rollback())
		})
	}
}

func requireSettingNamed(t *testing.T, err error, code string) {
	t.Helper()
	require.ErrorIs(t, err, schema.ErrPreparedStatement)
	for _, setting := range []string{"default_query_exec_mode=exec", "binary_parameters=yes", "max_prepared_statements"} {
		require.ErrorContains(t, err, setting)
	}
	var state interface{ SQLState() string }
	require.ErrorAs(t, err, &state)
	require.Equal(t, code, state.SQLState())
}

// endServerConnections makes PgBouncer open new ones.
func (d database) endServerConnections(t *testing.T) {
	t.Helper()
	waitForPool(t, d.name, func(column string) bool { return column != "sv_idle" && column != "sv_used" })
	_, err := d.direct.ExecContext(t.Context(), `SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
		WHERE datname = $1 AND application_name <> $2`, d.name, directApplication)
	require.NoError(t, err)
	waitForPool(t, d.name, func(column string) bool { return strings.HasPrefix(column, "sv_") })
}

// takeServer returns a transaction on that very server connection, so that others get
// another one. It takes all that it gets until then.
func (d database) takeServer(t *testing.T, server int) *sql.Tx {
	t.Helper()
	db := d.open(t, modes[0])
	for range poolSize {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		if backend(t, tx) == server {
			t.Cleanup(func() { _ = tx.Rollback() })
			return tx
		}
		defer tx.Rollback()
	}
	require.Fail(t, "the server connection is gone")
	return nil
}

func publish(ctx context.Context, db *sql.DB, s schema.Postgres, msgs ...*message.Message) error {
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: s}, nil)
	if err != nil {
		return err
	}
	return inTx(ctx, db, func(tx *sql.Tx) error { return publisher.PublishTx(ctx, tx, destination, msgs...) })
}

func inTx(ctx context.Context, db *sql.DB, run func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := run(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// startAndStop returns what Run says until the forwarder's workers have started.
func startAndStop(ctx context.Context, db *sql.DB, s schema.Postgres) error {
	var nobody recorder
	f, err := forwarder.New(db, nobody.publisher(), forwarder.Config{Schema: s, Workers: 1}, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	select {
	case <-f.Running():
		cancel()
		return <-done
	case err := <-done:
		return err
	case <-time.After(patience):
		return errors.New("it neither starts nor gives up")
	}
}

// A forwarder that meets this while it runs says so, waits as after any failure of the
// database, and leaves the outbox as it is.
func TestRunningForwarderReportsLostPreparedStatements(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	pool := db.openOne(t, brokenMode)
	server := backend(t, pool)
	var (
		published recorder
		logger    = &noteLogger{reported: make(chan error, 1)}
	)
	f, err := forwarder.New(pool, published.publisher(), forwarder.Config{
		Schema: db.schema, Workers: 1, PollInterval: 5 * time.Millisecond, RetryInitial: time.Hour, RetryMax: time.Hour,
	}, logger)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(cancel)
	require.NoError(t, publish(t.Context(), db.direct, db.schema, newMessage("a", 1)))
	eventually(t, func() bool { return db.count(t, db.schema.Outbox(), `true`) == 0 }, "all is well at first")

	taken := db.takeServer(t, server)
	select {
	case err := <-logger.reported:
		requireSettingNamed(t, err, "26000")
	case <-time.After(patience):
		require.Fail(t, "nothing is reported")
	}
	require.NoError(t, publish(t.Context(), db.direct, db.schema, newMessage("a", 2)))
	require.NoError(t, taken.Rollback())
	other := db.openOne(t, modes[0])
	for range 100 { // round trips on a way that is open to the forwarder too
		backend(t, other)
	}
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, 1, logger.count(), "it waits for RetryInitial")
	require.Equal(t, map[string]int{id("a", 1): 1}, published.counts())
	require.Equal(t, 1, db.count(t, db.schema.Outbox(), `id = 'a/2' AND attempts = 0`))
}

// noteLogger hands on the first error, and counts it with all that follow: an outage is
// an error once, and Debug after that.
type noteLogger struct {
	watermill.NopLogger

	reported chan error

	mu    sync.Mutex
	notes int
}

func (l *noteLogger) Error(_ string, err error, _ watermill.LogFields) {
	l.note()
	select {
	case l.reported <- err:
	default:
	}
}

func (l *noteLogger) Debug(string, watermill.LogFields) { l.note() }

func (l *noteLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (l *noteLogger) note() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notes++
}

func (l *noteLogger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.notes
}

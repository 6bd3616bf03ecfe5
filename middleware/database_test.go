package middleware_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
	"github.com/watermill-outbox/outbox/pgxtx"
)

// drivers are the ways to Postgres that every promise of the inbox holds on: lib/pq and
// pgx through database/sql, and native pgx.
var drivers = []string{"postgres", "pgx", native}

const native = "pgxpool"

// database is a pool of one of the drivers. What takes a context finds the
// transaction in it, as a handler does.
type database interface {
	configure(cfg *middleware.InboxConfig)
	inTx(ctx context.Context) bool
	exec(ctx context.Context, query string, args ...any) error
	scan(ctx context.Context, query string, dest any) error
	commit(ctx context.Context) error
	rollback(ctx context.Context) error

	// direct executes outside of a transaction, scanDirect likewise.
	direct(ctx context.Context, query string) error
	scanDirect(ctx context.Context, query string, dest any) error
	connectionsInUse() int
}

func openDatabase(t *testing.T, driver, dsn string, maxConns int) database {
	t.Helper()
	if driver == native {
		return nativeDatabase{testdb.OpenNative(t, dsn, func(cfg *pgxpool.Config) { cfg.MaxConns = int32(maxConns) })}
	}
	db := testdb.Open(t, driver, dsn)
	db.SetMaxOpenConns(maxConns)
	return sqlDatabase{db}
}

type sqlDatabase struct{ db *sql.DB }

func (d sqlDatabase) configure(cfg *middleware.InboxConfig) { cfg.DB, cfg.Beginner = d.db, nil }

func (d sqlDatabase) tx(ctx context.Context) *sql.Tx {
	tx, _ := outbox.TxFromContext[*sql.Tx](ctx)
	return tx
}

func (d sqlDatabase) inTx(ctx context.Context) bool { return d.tx(ctx) != nil }

func (d sqlDatabase) exec(ctx context.Context, query string, args ...any) error {
	_, err := d.tx(ctx).ExecContext(ctx, query, args...)
	return err
}

func (d sqlDatabase) scan(ctx context.Context, query string, dest any) error {
	return d.tx(ctx).QueryRowContext(ctx, query).Scan(dest)
}

func (d sqlDatabase) commit(ctx context.Context) error   { return d.tx(ctx).Commit() }
func (d sqlDatabase) rollback(ctx context.Context) error { return d.tx(ctx).Rollback() }

func (d sqlDatabase) direct(ctx context.Context, query string) error {
	_, err := d.db.ExecContext(ctx, query)
	return err
}

func (d sqlDatabase) scanDirect(ctx context.Context, query string, dest any) error {
	return d.db.QueryRowContext(ctx, query).Scan(dest)
}

func (d sqlDatabase) connectionsInUse() int { return d.db.Stats().InUse }

type nativeDatabase struct{ pool *pgxpool.Pool }

func (d nativeDatabase) configure(cfg *middleware.InboxConfig) {
	cfg.DB, cfg.Beginner = nil, pgxtx.NewBeginner(d.pool)
}

func (d nativeDatabase) tx(ctx context.Context) pgx.Tx {
	tx, _ := outbox.TxFromContext[pgx.Tx](ctx)
	return tx
}

func (d nativeDatabase) inTx(ctx context.Context) bool { return d.tx(ctx) != nil }

func (d nativeDatabase) exec(ctx context.Context, query string, args ...any) error {
	_, err := d.tx(ctx).Exec(ctx, query, args...)
	return err
}

func (d nativeDatabase) scan(ctx context.Context, query string, dest any) error {
	return d.tx(ctx).QueryRow(ctx, query).Scan(dest)
}

func (d nativeDatabase) commit(ctx context.Context) error   { return d.tx(ctx).Commit(ctx) }
func (d nativeDatabase) rollback(ctx context.Context) error { return d.tx(ctx).Rollback(ctx) }

func (d nativeDatabase) direct(ctx context.Context, query string) error {
	_, err := d.pool.Exec(ctx, query)
	return err
}

func (d nativeDatabase) scanDirect(ctx context.Context, query string, dest any) error {
	return d.pool.QueryRow(ctx, query).Scan(dest)
}

func (d nativeDatabase) connectionsInUse() int { return int(d.pool.Stat().AcquiredConns()) }

// requireIdle says that every connection is back in the pool, or dropped. A pool of pgx
// drops in the background.
func (b *testBundle) requireIdle(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return b.pool.connectionsInUse() == 0 }, wait, tick)
}

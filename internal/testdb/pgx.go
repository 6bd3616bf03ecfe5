package testdb

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/schema"
)

const maxNativeConns = 20

// OpenNative opens a pool of native pgx that is closed after the test. Configure may be
// nil. A connection that is not returned by then fails the test.
func OpenNative(t *testing.T, dsn string, configure func(cfg *pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	cfg.MaxConns = maxNativeConns
	if configure != nil {
		configure(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			pool.Close()
		}()
		select {
		case <-closed:
		case <-time.After(cleanupTimeout):
			require.FailNow(t, "a connection of the pool was not returned")
		}
	})
	return pool
}

// ExampleNative is Example with a pool of native pgx.
func ExampleNative() (pool *pgxpool.Pool, tables schema.Postgres, drop func()) {
	db, tables, dropSchema := Example()
	must(db.ExecContext(context.Background(), `CREATE SCHEMA `+tables.Schema))
	pool = must(pgxpool.New(context.Background(), address()))
	return pool, tables, func() {
		pool.Close()
		dropSchema()
	}
}

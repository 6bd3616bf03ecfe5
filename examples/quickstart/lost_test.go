package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"testing"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
)

// An order whose event is lost is never paid: the demo stops waiting, and says so in
// its figures.
func TestLostEventShowsInTheFigures(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"kafka", "amqp"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			dsn, db := newDatabase(t)
			const orders = 500
			demo := newProgram(t, "-broker="+broker, fmt.Sprint("-orders=", orders))
			demo.Env = append(demo.Env, "POSTGRES_DSN="+dsn)
			demo.start(t)
			requireOutboxRowDeleted(t, db)
			require.Error(t, demo.Wait())

			require.Equal(t, exitFailed, demo.ProcessState.ExitCode(), "%s", &demo.stderr)
			found := lastLine(t, demo.stdout.String())
			require.Equal(t, figures{
				orders:            orders,
				rolledBack:        orders / rollbackEvery,
				forwarded:         2*orders - 2,
				redelivered:       found.redelivered,
				duplicatesDropped: found.duplicatesDropped,
				debits:            orders - 1,
				lost:              1,
			}, found)
			require.Contains(t, demo.stderr.String(), errStalled.Error())
			require.Contains(t, demo.stderr.String(), "1 committed events are lost")
			demo.requireNothingLeft(t)
		})
	}
}

// newDatabase is of the test's own, on the server of the tests: in it there is one run
// to be found.
func newDatabase(t *testing.T) (dsn string, db *sql.DB) {
	t.Helper()
	server, err := sql.Open("postgres", postgresDSN())
	require.NoError(t, err)
	name := "quickstart_test_" + rand.Text()
	_, err = server.ExecContext(t.Context(), `CREATE DATABASE `+pq.QuoteIdentifier(name)+` TEMPLATE template0`)
	require.NoError(t, err)
	parsed, err := url.Parse(postgresDSN())
	require.NoError(t, err)
	parsed.Path = "/" + name
	db, err = sql.Open("postgres", parsed.String())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, db.Close())
		_, err := server.ExecContext(context.Background(), `DROP DATABASE `+pq.QuoteIdentifier(name)+` WITH (FORCE)`)
		require.NoError(t, err)
		require.NoError(t, server.Close())
	})
	return parsed.String(), db
}

// requireOutboxRowDeleted deletes the first row of the run's outbox, long before a
// forwarder is there.
func requireOutboxRowDeleted(t *testing.T, db *sql.DB) {
	t.Helper()
	require.Eventually(t, func() bool {
		var schema string
		err := db.QueryRowContext(t.Context(), `SELECT schemaname FROM pg_tables WHERE tablename = 'orders'`).Scan(&schema)
		if err != nil {
			return false // not yet
		}
		outbox := pq.QuoteIdentifier(schema) + ".outbox"
		deleted, err := db.ExecContext(t.Context(), `DELETE FROM `+outbox+` WHERE seq = (SELECT min(seq) FROM `+outbox+`)`)
		if err != nil {
			return false
		}
		rows, err := deleted.RowsAffected()
		return err == nil && rows == 1
	}, wait, tick)
}

// When the time is over, the demo takes stock of what there is.
func TestTimeOverIsAudited(t *testing.T) {
	t.Parallel()
	for _, kind := range []servers.Kind{servers.Kafka, servers.AMQP} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newEmptyWorld(t, kind)
			ctx, abort := context.WithCancelCause(t.Context())
			d := &demo{servers: w.servers, db: w.db, screen: &screen{}, abort: abort}
			ended := make(chan struct{})
			var (
				found *figures
				err   error
			)
			const orders = 1000
			go func() {
				defer close(ended)
				found, err = d.run(ctx, orders)
			}()
			require.Eventually(t, func() bool { return d.handled.Load() > 0 }, wait, tick)
			abort(errTimeOver)
			<-ended
			require.ErrorIs(t, err, errTimeOver)
			require.ErrorContains(t, err, "orders are not paid")
			require.NotNil(t, found)
			require.Equal(t, orders, found.orders)
			require.Positive(t, found.forwarded)
			require.Zero(t, found.lost)
		})
	}
}

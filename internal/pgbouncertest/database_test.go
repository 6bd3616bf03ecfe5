package pgbouncertest_test

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/internal/testpgbouncer"
	"github.com/watermill-outbox/outbox/schema"
)

const (
	defaultDSN = "postgres://outbox:outbox@127.0.0.1:26432/outbox?sslmode=disable"
	// poolSize is PgBouncer's default_pool_size, for each database.
	poolSize = 4
)

// directApplication tells sessions past PgBouncer from those of the pool.
const directApplication = "direct"

// database is a test's own, and with it a pool of its own in PgBouncer.
type database struct {
	name string
	// direct is a pool of connections past PgBouncer.
	direct    *sql.DB
	directDSN string
	pooledDSN string
	schema    schema.Postgres
}

// newDatabase creates a database that is dropped after the test. No session of it finds
// a table of ours by its search_path, which is set in the database itself: what an
// address says of it, PgBouncer ignores.
func newDatabase(t *testing.T, searchPath string, statements ...string) database {
	t.Helper()
	admin := testdb.Open(t, "postgres", testdb.DSN(t))
	name := "pooled_" + testdb.RandomName(t)
	_, err := admin.ExecContext(t.Context(), `CREATE DATABASE `+name)
	require.NoError(t, err, "no Postgres: run \"make services\", or set POSTGRES_DSN")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		_, err := admin.ExecContext(ctx, `DROP DATABASE `+name+` WITH (FORCE)`)
		require.NoError(t, err)
	})
	_, err = admin.ExecContext(t.Context(), `ALTER DATABASE `+name+` SET search_path = `+searchPath)
	require.NoError(t, err)

	directDSN := testdb.WithSetting(t, withDatabase(t, testdb.DSN(t), name), "application_name", directApplication)
	db := database{
		name:      name,
		direct:    testdb.Open(t, "postgres", directDSN),
		directDSN: directDSN,
		pooledDSN: throughProxy(t, withDatabase(t, pgbouncerDSN(), name)),
		schema:    schema.Postgres{Schema: "events"},
	}
	for _, statement := range statements {
		_, err := db.direct.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	return db
}

// waitForPool waits until PgBouncer has none of the connections that are counted in some
// of SHOW POOLS' columns: those of clients (cl_) and of servers (sv_), by state.
func waitForPool(t *testing.T, name string, counts func(column string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	console, err := sql.Open("postgres", withDatabase(t, pgbouncerDSN(), "pgbouncer"))
	require.NoError(t, err)
	defer func() { require.NoError(t, console.Close()) }()
	eventually(t, func() bool {
		found, err := countConnections(ctx, console, name, counts)
		require.NoError(t, err)
		return found == 0
	}, "PgBouncer keeps its connections")
}

func countConnections(ctx context.Context, console *sql.DB, name string, counts func(column string) bool) (found int, err error) {
	rows, err := console.QueryContext(ctx, `SHOW POOLS`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	for rows.Next() {
		values, targets := make([]string, len(columns)), make([]any, len(columns))
		for i := range values {
			targets[i] = &values[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return 0, err
		}
		for i, column := range columns {
			isCount := strings.HasPrefix(column, "cl_") || strings.HasPrefix(column, "sv_")
			if values[0] != name || !isCount || !counts(column) {
				continue
			}
			count, err := strconv.Atoi(values[i])
			if err != nil {
				return 0, err
			}
			found += count
		}
	}
	return found, rows.Err()
}

// newMigrated returns a database with our tables, made past PgBouncer.
func newMigrated(t *testing.T) database {
	t.Helper()
	db := newHostile(t)
	require.NoError(t, db.schema.Migrate(t.Context(), db.direct))
	return db
}

// withOutbox makes one more outbox, beside the others.
func (d database) withOutbox(t *testing.T, name string) database {
	t.Helper()
	d.schema.Name = name
	require.NoError(t, d.schema.Migrate(t.Context(), d.direct))
	return d
}

func pgbouncerDSN() string {
	if dsn := os.Getenv("PGBOUNCER_DSN"); dsn != "" {
		return dsn
	}
	return defaultDSN
}

func throughProxy(t *testing.T, dsn string) string {
	t.Helper()
	parsed, err := url.Parse(dsn)
	require.NoError(t, err)
	parsed.Host = testpgbouncer.StartProxy(t, net.JoinHostPort(parsed.Hostname(), parsed.Port()))
	return parsed.String()
}

func withDatabase(t *testing.T, dsn, name string) string {
	t.Helper()
	parsed, err := url.Parse(dsn)
	require.NoError(t, err)
	parsed.Path = "/" + name
	return parsed.String()
}

// open opens a pool through PgBouncer, as one more process would.
func (d database) open(t *testing.T, m mode) *sql.DB {
	t.Helper()
	db := testdb.Open(t, m.driver, d.dsn(t, m))
	require.NoError(t, db.PingContext(t.Context()), "no PgBouncer: run \"make services\", or set PGBOUNCER_DSN")
	return db
}

// openMany is open, for n processes. They start when all have a connection: a test that
// fails in between would leave the others running.
func (d database) openMany(t *testing.T, m mode, n int) []*sql.DB {
	t.Helper()
	processes := make([]*sql.DB, n)
	for i := range processes {
		processes[i] = d.open(t, m)
	}
	return processes
}

func (d database) dsn(t *testing.T, m mode) string {
	t.Helper()
	dsn := testdb.WithSetting(t, d.pooledDSN, "search_path", "nowhere")
	if m.setting != "" {
		dsn = testdb.WithSetting(t, dsn, m.setting, m.value)
	}
	return dsn
}

// openOne is open with one connection only, so that what it has prepared is known.
func (d database) openOne(t *testing.T, m mode) *sql.DB {
	t.Helper()
	db := d.open(t, m)
	db.SetMaxOpenConns(1)
	return db
}

// count runs past PgBouncer.
func (d database) count(t *testing.T, table, where string) int {
	t.Helper()
	var n int
	require.NoError(t, d.direct.QueryRowContext(t.Context(), `SELECT pg_catalog.count(*) FROM `+table+` WHERE `+where).Scan(&n))
	return n
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, 5*time.Millisecond, what)
}

// Package testdb gives each test a Postgres schema of its own on a real server.
package testdb

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/schema"
)

const (
	defaultDSN     = "postgres://outbox:outbox@127.0.0.1:54329/outbox?sslmode=disable"
	cleanupTimeout = 30 * time.Second
	// noSchema is the empty search_path as Postgres itself writes it. lib/pq leaves a
	// setting without a value out of what it sends.
	noSchema = `""`
)

// DB is a test's own corner of the database server.
type DB struct {
	*sql.DB

	// Schema names the tables, in a schema that is dropped after the test.
	Schema schema.Postgres
	// DSN leads to the same database with an empty search_path.
	DSN string
}

// New returns a database connected through lib/pq, with migrated tables. It fails
// the test where no server answers: start one with "make services".
func New(t *testing.T) *DB {
	t.Helper()
	db := NewEmpty(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	return db
}

// NewEmpty is New without the migration: the schema exists, and nothing in it.
func NewEmpty(t *testing.T) *DB {
	t.Helper()
	name := "test_" + RandomName(t)
	dsn := DSN(t)
	db := Open(t, "postgres", dsn)
	_, err := db.ExecContext(t.Context(), `CREATE SCHEMA `+name)
	require.NoErrorf(t, err, "no Postgres at %s: run \"make services\", or set POSTGRES_DSN", dsn)
	t.Cleanup(func() {
		dropper, err := sql.Open("postgres", dsn)
		require.NoError(t, err)
		defer func() { require.NoError(t, dropper.Close()) }()
		exec(t, dropper, `DROP SCHEMA IF EXISTS `+name+` CASCADE`)
	})
	return &DB{DB: db, Schema: schema.Postgres{Schema: name}, DSN: dsn}
}

// Open opens a pool with the given driver that is closed after the test.
func Open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// DSN is the address of the test server, with an empty search_path: what is not
// qualified is not found.
func DSN(t *testing.T) string {
	t.Helper()
	return WithSetting(t, address(), "search_path", noSchema)
}

// RandomName returns a short name that no other test has, of letters and digits.
func RandomName(t *testing.T) string {
	t.Helper()
	random := make([]byte, 6)
	_, err := rand.Read(random)
	require.NoError(t, err)
	return hex.EncodeToString(random)
}

// WithSetting adds a server setting, such as default_transaction_isolation, to a DSN.
func WithSetting(t *testing.T, dsn, name, value string) string {
	t.Helper()
	parsed, err := url.Parse(dsn)
	require.NoError(t, err, "POSTGRES_DSN must be a URL")
	query := parsed.Query()
	query.Set(name, value)
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus literally
	return parsed.String()
}

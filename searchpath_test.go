package outbox_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// A schema on the search_path may hold anything, put there by accident or on purpose.
// Whoever may create functions in it must not have the forwarder's role call them, and
// tables of the same names must not take our rows.
func TestHostileSearchPath(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		path string
		trap func(t *testing.T, db *sql.DB)
	}{
		// Postgres takes its own functions first, unless others fit the types better.
		"fits better": {path: `trap`, trap: trapBetterFits},
		"comes first": {path: `trap, pg_catalog`, trap: trapNamesakes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.NewDatabase(t, `search_path = `+test.path)
			plain := testdb.Open(t, "postgres", testdb.WithSetting(t, db.DSN, "search_path", "pg_catalog"))
			test.trap(t, plain)
			for _, driver := range drivers {
				travel(t, testdb.Open(t, driver, db.DSN), schema.Postgres{Schema: driver})
			}
			var astray int
			require.NoError(t, plain.QueryRowContext(t.Context(), `SELECT count(*) FROM trap.outbox`).Scan(&astray))
			require.Zero(t, astray)
		})
	}
}

const trapTables = `
CREATE SCHEMA trap;
CREATE TABLE trap.outbox (id text, destination text, payload text);
CREATE TABLE trap.inbox (consumer text, event_id text);
CREATE TABLE trap.outbox_settings (lanes integer);
CREATE TABLE trap.watermill_outbox_migrations (table_name text, kind text, version integer);
CREATE TABLE trap.pg_class (relname name, relnamespace oid);
CREATE TABLE trap.pg_namespace (oid oid, nspname name);
CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'trapped'; END$$;
`

// trapNamesakes makes a twin of each function in pg_catalog that our statements call, or
// might, with all its signatures. Operators have none: who puts pg_catalog behind
// operators of his own means it.
func trapNamesakes(t *testing.T, db *sql.DB) {
	t.Helper()
	spread(t, db, trapTables)
	rows, err := db.QueryContext(t.Context(), `SELECT format('CREATE FUNCTION trap.%I(%s) RETURNS %s%s LANGUAGE plpgsql %s AS $$BEGIN RAISE EXCEPTION ''trapped in %s''; END$$',
			p.proname, pg_get_function_arguments(p.oid), CASE WHEN p.proretset THEN 'SETOF ' END, format_type(p.prorettype, NULL),
			CASE p.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END, p.proname)
		FROM pg_proc AS p
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a')
			AND p.provariadic = 0 AND '"any"'::regtype <> ALL (p.proargtypes)
			AND p.proname = ANY (string_to_array('now clock_timestamp statement_timestamp random power left substr md5 octet_length '
				|| 'jsonb_typeof pg_column_size current_setting set_config pg_try_advisory_xact_lock pg_advisory_xact_lock '
				|| 'pg_get_serial_sequence has_table_privilege has_any_column_privilege pg_client_encoding to_char timezone '
				|| 'make_interval generate_series unnest max sum '
				|| 'convert_to convert_from decode json_to_recordset jsonb_each_text jsonb_object_agg', ' '))`)
	require.NoError(t, err)
	defer rows.Close()
	var statements []string
	for rows.Next() {
		var statement string
		require.NoError(t, rows.Scan(&statement))
		statements = append(statements, statement)
	}
	require.NoError(t, rows.Err())
	require.Greater(t, len(statements), 50)
	spread(t, db, strings.Join(statements, ";\n"))
}

// trapBetterFits makes functions and operators for pairs of types that Postgres has
// none for: it would convert one of the two, and prefers what needs no conversion.
func trapBetterFits(t *testing.T, db *sql.DB) {
	t.Helper()
	spread(t, db, trapTables)
	types := []string{
		"integer", "bigint", "numeric", "double precision", "text", "name", "oid", "regclass", "timestamptz", "interval",
	}
	var statements []string
	for _, left := range types {
		statements = append(statements, fmt.Sprintf(
			`CREATE FUNCTION trap.left(%[1]s, bigint) RETURNS text LANGUAGE sql AS 'SELECT trap.spring()::text'`, left))
		for _, right := range types {
			statements = append(statements, fmt.Sprintf(
				`CREATE FUNCTION trap.operate(%[1]s, %[2]s) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()';
				CREATE FUNCTION trap.power(%[1]s, %[2]s) RETURNS double precision LANGUAGE sql AS 'SELECT trap.spring()::int::float8'`,
				left, right))
			for _, operator := range []string{"=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "&", "||"} {
				statements = append(statements, fmt.Sprintf(
					`CREATE OPERATOR trap.%s (FUNCTION = trap.operate, LEFTARG = %s, RIGHTARG = %s)`, operator, left, right))
			}
		}
	}
	spread(t, db, strings.Join(statements, ";\n"))
}

func spread(t *testing.T, db *sql.DB, statements string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statements)
	require.NoError(t, err)
}

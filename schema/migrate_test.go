package schema_test

import (
	"context"
	"database/sql"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

func TestMigrateIsIdempotentWithBothDrivers(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			empty := testdb.NewEmpty(t)
			db := testdb.Open(t, driver, empty.DSN)
			require.ErrorIs(t, empty.Schema.Check(t.Context(), db), schema.ErrNotMigrated)
			for range 3 {
				require.NoError(t, empty.Schema.Migrate(t.Context(), db))
				require.NoError(t, empty.Schema.Check(t.Context(), db))
			}
		})
	}
}

func TestMigrateByManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	empty := testdb.NewEmpty(t)
	var wait sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		db := testdb.Open(t, "postgres", empty.DSN)
		wait.Go(func() { errs[i] = empty.Schema.Migrate(t.Context(), db) })
	}
	wait.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, empty.Schema.Check(t.Context(), empty.DB))
}

func TestMigrateCreatesTheSchema(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	s := schema.Postgres{Schema: `Own "one" ` + testdb.RandomName(t), Name: strings.Repeat("Ö", 31), InboxName: "Seen"}
	db.DropSchema(t, s.Schema)
	require.NoError(t, s.Migrate(t.Context(), db.DB))
	require.NoError(t, s.Check(t.Context(), db.DB))
	insertThreeColumns(t, db.DB, s)
}

func TestTwoOutboxesInOneSchemaShareAnInbox(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	second := db.Schema
	second.Name = "second"
	require.NoError(t, second.Migrate(t.Context(), db.DB))
	insertThreeColumns(t, db.DB, db.Schema)
	insertThreeColumns(t, db.DB, second)
}

// A role that may only use the tables starts the same program as the one that made
// them.
func TestMigrateNeedsNoRightsWhenNothingIsToDo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	_, dsn := db.NewRole(t,
		`GRANT USAGE ON SCHEMA "`+db.Schema.Schema+`" TO {role}`,
		`GRANT SELECT ON "`+db.Schema.Schema+`".watermill_outbox_migrations TO {role}`,
		`GRANT INSERT ON `+db.Schema.Outbox()+` TO {role}`)
	asRole := testdb.Open(t, "postgres", dsn)
	require.NoError(t, db.Schema.Migrate(t.Context(), asRole))
	insertThreeColumns(t, asRole, db.Schema)
}

func TestMigrateLeavesForeignTablesAlone(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"outbox", "outbox_dead_letters", "outbox_settings", "inbox", "inbox_received_at_idx"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			db := testdb.NewEmpty(t)
			_, err := db.ExecContext(t.Context(), `CREATE TABLE "`+db.Schema.Schema+`"."`+table+`" (theirs text)`)
			require.NoError(t, err)
			err = db.Schema.Migrate(t.Context(), db.DB)
			require.ErrorIs(t, err, schema.ErrForeignTable)
			require.ErrorContains(t, err, table)
			require.Equal(t, []string{table}, tablesIn(t, db), "nothing was made")
		})
	}
}

func TestMigrateRefusesItsOwnTablesInAnotherRole(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	swapped := schema.Postgres{Schema: db.Schema.Schema, Name: "inbox", InboxName: "outbox"}
	require.ErrorIs(t, swapped.Migrate(t.Context(), db.DB), schema.ErrForeignTable)
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	_, err := db.ExecContext(t.Context(), `UPDATE "`+db.Schema.Schema+`".watermill_outbox_migrations SET version = 99`)
	require.NoError(t, err)
	require.ErrorIs(t, db.Schema.Migrate(t.Context(), db.DB), schema.ErrNewerSchema)
	require.ErrorIs(t, db.Schema.Check(t.Context(), db.DB), schema.ErrNewerSchema)
}

func TestOnlyUTF8DatabasesAreAccepted(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	name := "latin_" + testdb.RandomName(t)
	_, err := db.ExecContext(t.Context(), `CREATE DATABASE `+name+` ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), `DROP DATABASE `+name)
		require.NoError(t, err)
	})
	dsn, err := url.Parse(db.DSN)
	require.NoError(t, err)
	dsn.Path = "/" + name
	latin, err := sql.Open("postgres", dsn.String())
	require.NoError(t, err)
	err = schema.Postgres{}.Migrate(t.Context(), latin)
	require.NoError(t, latin.Close())
	require.ErrorIs(t, err, schema.ErrNotUTF8)
	require.ErrorContains(t, err, "LATIN1")
}

func TestCheckFindsACachedSequence(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	_, err := db.ExecContext(t.Context(), `ALTER TABLE `+db.Schema.Outbox()+` ALTER COLUMN seq SET CACHE 10`)
	require.NoError(t, err)
	err = db.Schema.Check(t.Context(), db.DB)
	require.ErrorIs(t, err, schema.ErrSequenceCache)
	require.ErrorContains(t, err, "CACHE 10")
}

func insertThreeColumns(t *testing.T, db *sql.DB, s schema.Postgres) {
	t.Helper()
	_, err := db.ExecContext(t.Context(),
		`INSERT INTO `+s.Outbox()+` (id, destination, payload) VALUES ('1', 'orders', '{"event":"created"}')`)
	require.NoError(t, err)
}

func tablesIn(t *testing.T, db *testdb.DB) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(),
		`SELECT relname FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND relkind = 'r' ORDER BY relname`, db.Schema.Schema)
	require.NoError(t, err)
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var table string
		require.NoError(t, rows.Scan(&table))
		tables = append(tables, table)
	}
	require.NoError(t, rows.Err())
	return tables
}

package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

func execute(t *testing.T, db *testdb.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	require.NoError(t, err)
}

// Whoever has dropped the tables wants them anew: what Migrate remembers of them must not
// keep it from that.
func TestMigrateCreatesDroppedTablesAnew(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]func(db *testdb.DB) string{
		"outbox": func(db *testdb.DB) string {
			return `DROP TABLE ` + db.Schema.Outbox() + `, ` + db.Schema.DeadLetters() + `, ` + db.Schema.Settings() +
				`, ` + db.Schema.Absences() + `, ` + db.Schema.Slots()
		},
		"inbox": func(db *testdb.DB) string { return `DROP TABLE ` + db.Schema.Inbox() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			before := tablesIn(t, db)
			execute(t, db, drop(db))
			err := db.Schema.Check(t.Context(), db.DB)
			require.ErrorIs(t, err, schema.ErrNotMigrated)
			require.ErrorContains(t, err, name+`" was dropped`)
			require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
			require.NoError(t, db.Schema.Check(t.Context(), db.DB))
			require.Equal(t, before, tablesIn(t, db))
			insertThreeColumns(t, db.DB, db.Schema)
		})
	}
}

// What is left of them may hold messages.
func TestMigrateLeavesRemainsAlone(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]func(s schema.Postgres) string{
		"outbox": schema.Postgres.Outbox, "dead letters": schema.Postgres.DeadLetters, "settings": schema.Postgres.Settings, "absences": schema.Postgres.Absences,
		"slots": schema.Postgres.Slots,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			execute(t, db, `DROP TABLE `+table(db.Schema))
			remains := tablesIn(t, db)
			for _, err := range []error{db.Schema.Migrate(t.Context(), db.DB), db.Schema.Check(t.Context(), db.DB)} {
				require.ErrorIs(t, err, schema.ErrIncomplete)
				require.ErrorContains(t, err, table(db.Schema))
			}
			require.Equal(t, remains, tablesIn(t, db))
		})
	}
}

// A new table of theirs in the place of ours is theirs.
func TestMigrateTakesNoForeignIndexForItsOwn(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	execute(t, db, `DROP TABLE `+db.Schema.Inbox())
	execute(t, db, `CREATE TABLE "`+db.Schema.Schema+`".inbox_received_at_idx (theirs text)`)
	require.ErrorIs(t, db.Schema.Migrate(t.Context(), db.DB), schema.ErrForeignTable)
}

// As a test's cleanup does that empties all tables: without the row no forwarder finds a
// lane.
func TestMigrateRestoresLostSettings(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	execute(t, db, `TRUNCATE `+db.Schema.Settings())
	err := db.Schema.Check(t.Context(), db.DB)
	require.ErrorIs(t, err, schema.ErrNotMigrated)
	require.ErrorContains(t, err, db.Schema.Settings()+" is empty")
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	require.NoError(t, db.Schema.Check(t.Context(), db.DB))
	require.Equal(t, 64, lanes(t, db))

	execute(t, db, `UPDATE `+db.Schema.Settings()+` SET lanes = 128`)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	require.Equal(t, 128, lanes(t, db), "what is there stays")
}

func lanes(t *testing.T, db *testdb.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT lanes FROM `+db.Schema.Settings()).Scan(&n))
	return n
}

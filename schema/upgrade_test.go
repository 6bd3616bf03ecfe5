package schema_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

const seqZero = `INSERT INTO {outbox} (seq, id, destination, payload) OVERRIDING SYSTEM VALUE VALUES (0, 'zero', 'orders', 'x')`

// Rows, attempts and dead letters of the first version are there after the upgrade, and new
// dead letters do not meet the old ones' numbers.
func TestUpgradeFromTheFirstVersion(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		for _, name := range []string{"outbox", strings.Repeat(`Ö'"`, 12)} {
			t.Run(driver+" "+name, func(t *testing.T) {
				t.Parallel()
				db := testdb.NewEmpty(t)
				s := schema.Postgres{Schema: db.Schema.Schema, Name: name}
				pool := testdb.Open(t, driver, db.DSN)
				require.NoError(t, s.MigrateTo(t.Context(), pool, 1))
				for _, statement := range []string{
					`INSERT INTO {outbox} (id, destination, partition_key, payload) SELECT 'id-' || n, 'orders', 'a', 'x' FROM generate_series(1, 5) AS n`,
					`UPDATE {outbox} SET attempts = 3, last_error = 'refused', next_attempt_at = '2026-01-02 03:04:05+00' WHERE seq IN (2, 4)`,
					`UPDATE {outbox} SET next_attempt_at = 'infinity' WHERE seq = 5`,
					seqZero,
					`INSERT INTO {dead} (seq, id, destination, payload, metadata, created_at, attempts, error)
						SELECT n, 'dead-' || n, 'orders', 'x', '{"a": "b"}', '2026-01-01 00:00:00+00', 7, 'too large' FROM unnest(ARRAY[3, 1, 2, 9007199254740993]) AS n`,
				} {
					run(t, pool, s, statement)
				}
				require.ErrorIs(t, s.Check(t.Context(), pool), schema.ErrNotMigrated)
				require.NoError(t, s.Migrate(t.Context(), pool))
				require.NoError(t, s.Migrate(t.Context(), pool))
				require.NoError(t, s.Check(t.Context(), pool))

				// What is refused from now on does not stand in the way where it is there already.
				run(t, pool, s, `DELETE FROM {outbox} WHERE seq = 0`)
				_, err := pool.ExecContext(t.Context(), strings.ReplaceAll(seqZero, "{outbox}", s.Outbox()))
				require.ErrorContains(t, err, "seq_is_positive")

				require.Equal(t, `1:0:-, 2:3:2026-01-02 03:04:05, 3:0:-, 4:3:2026-01-02 03:04:05, 5:0:infinity`, text(t, pool, s,
					`SELECT string_agg(seq || ':' || attempts || ':' || CASE WHEN next_attempt_at IS NULL THEN '-'
						WHEN isfinite(next_attempt_at) THEN to_char(next_attempt_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') ELSE 'infinity' END,
						', ' ORDER BY seq) FROM {outbox}`))
				require.Equal(t, `{dead-1:1:7,dead-2:2:7,dead-3:3:7,dead-9007199254740993:9007199254740993:7}`, text(t, pool, s,
					`SELECT array_agg(id || ':' || seq || ':' || attempts ORDER BY seq)::text FROM {dead} WHERE NOT blocks AND error = 'too large'`))

				for range 10 { // as many as meet the old numbers, if they were kept
					run(t, pool, s, `INSERT INTO {dead} (seq, id, destination, payload, metadata, created_at, attempts, error)
						VALUES (1, 'new', 'orders', 'x', '{}', now(), 1, 'too large')`)
				}
				require.Equal(t, `14 14`, text(t, pool, s, `SELECT count(DISTINCT dead_letter_id) || ' ' || count(*) FROM {dead}`))
			})
		}
	}
}

func TestUpgradeByManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	require.NoError(t, db.Schema.MigrateTo(t.Context(), db.DB, 1))
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() { errs <- db.Schema.Migrate(t.Context(), db.DB) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.NoError(t, db.Schema.Check(t.Context(), db.DB))
}

// A table that somebody else has made under a name that the second version needs.
func TestUpgradeLeavesForeignTablesAlone(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	require.NoError(t, db.Schema.MigrateTo(t.Context(), db.DB, 1))
	run(t, db.DB, db.Schema, `CREATE TABLE "`+db.Schema.Schema+`".outbox_absences (theirs text)`)
	err := db.Schema.Migrate(t.Context(), db.DB)
	require.ErrorIs(t, err, schema.ErrForeignTable)
	require.ErrorContains(t, err, "outbox_absences")
	require.ErrorIs(t, db.Schema.Check(t.Context(), db.DB), schema.ErrNotMigrated)
}

func named(s schema.Postgres, statement string) string {
	return strings.NewReplacer("{outbox}", s.Outbox(), "{dead}", s.DeadLetters()).Replace(statement)
}

func run(t *testing.T, db *sql.DB, s schema.Postgres, statement string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), named(s, statement))
	require.NoError(t, err, statement)
}

func text(t *testing.T, db *sql.DB, s schema.Postgres, query string) (found string) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), named(s, query)).Scan(&found), query)
	return found
}

// Keys of the first version are there for the function that records.
func TestUpgradeKeepsTheKeysOfTheInbox(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"inbox", strings.Repeat(`Ö'"`, 12), "$$ %s \\"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.NewEmpty(t)
			s := schema.Postgres{Schema: db.Schema.Schema, InboxName: name}
			require.NoError(t, s.MigrateInboxTo(t.Context(), db.DB, 1))
			run(t, db.DB, s, `INSERT INTO `+s.Inbox()+` (consumer, event_id, digest) VALUES ('payments', 'known', 'a'), ('payments', 'no digest', NULL)`)
			require.NoError(t, s.Migrate(t.Context(), db.DB))
			record := func(id, digest string) string {
				return text(t, db.DB, s, `SELECT `+s.RecordFunction()+`('payments', '`+id+`', '`+digest+`', NULL, NULL)::text`)
			}
			require.Equal(t, "0", record("known", "a"))
			require.Equal(t, "2", record("known", "b"))
			require.Equal(t, "0", record("no digest", "b"))
			require.Equal(t, "1", record("new", "a"))
			require.Equal(t, "0", record("new", "a"))
		})
	}
}

package forwarder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Counted by Postgres itself, whatever the statistics say: no table is read as a whole, and
// the estimates are near.
func TestStatsOfALargeOutbox(t *testing.T) {
	t.Parallel()
	const total = 400_000
	for name, analyzed := range map[string]bool{"statistics of an empty table": false, "statistics": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			exec := func(statement string) {
				_, err := db.ExecContext(t.Context(), statement)
				require.NoError(t, err)
			}
			outbox, dead := db.Schema.Outbox(), db.Schema.DeadLetters()
			analyze := func() {
				for _, table := range []string{outbox, dead, db.Schema.Absences()} {
					exec(`VACUUM ANALYZE ` + table)
				}
			}
			exec(`ALTER TABLE ` + outbox + ` SET (autovacuum_enabled = false)`)
			exec(`ALTER TABLE ` + dead + ` SET (autovacuum_enabled = false)`)
			analyze()
			// Published ones first, then a gap, then a backlog in which two thirds are held.
			exec(`INSERT INTO ` + outbox + ` (seq, id, destination, partition_key, payload, created_at, published_at, next_attempt_at) OVERRIDING SYSTEM VALUE
				SELECT CASE WHEN n <= 100000 THEN n ELSE n + 5000000 END, 'id-' || n, CASE WHEN n % 4 = 0 THEN 'payments' ELSE 'orders' END, 'key-' || n % 1000, 'x',
					now() - interval '1 day' + n * interval '1 millisecond', CASE WHEN n <= 100000 THEN now() END, CASE WHEN n > 200000 THEN timestamptz 'infinity' END
				FROM generate_series(1, 400000) AS n ORDER BY n`)
			exec(`UPDATE ` + outbox + ` SET next_attempt_at = now() + interval '1 hour', last_error = 'x', attempts = 1 WHERE id = 'id-200001'`)
			exec(`INSERT INTO ` + dead + ` (seq, id, destination, partition_key, payload, metadata, created_at, attempts, error, error_group, blocks)
				SELECT n, 'dead-' || n, 'orders', 'key-' || n % 1000, 'x', '{}', now(), 1, 'e' || n % 3, 'e' || n % 3, n % 10 = 0 AND n <= 2000 FROM generate_series(1, 150000) AS n ORDER BY n`)
			if analyzed {
				analyze()
			}

			admin, err := NewAdmin(db.DB, db.Schema)
			require.NoError(t, err)
			var stats Stats
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			_, err = tx.ExecContext(t.Context(), adminSettings+`; `+indexSettings)
			require.NoError(t, err)
			read := func() map[string]int64 {
				found := map[string]int64{}
				rows, err := tx.QueryContext(t.Context(), `SELECT relname, seq_tup_read, seq_tup_read + coalesce(idx_tup_fetch, 0)
					FROM pg_stat_xact_user_tables WHERE schemaname = $1`, db.Schema.Schema)
				require.NoError(t, err)
				defer rows.Close()
				for rows.Next() {
					var (
						table         string
						whole, either int64
					)
					require.NoError(t, rows.Scan(&table, &whole, &either))
					found[table], found[table+" as a whole"] = either, whole
				}
				require.NoError(t, rows.Err())
				return found
			}
			sessions := read // what it has not reported yet of earlier transactions is in it
			before := sessions()
			read = func() map[string]int64 {
				found := sessions()
				for name := range found {
					found[name] -= before[name]
				}
				return found
			}
			require.NoError(t, admin.readClock(t.Context(), tx, &stats))
			require.NoError(t, admin.readBacklog(t.Context(), tx, &stats))
			backlog := read()
			require.Positive(t, backlog["outbox"])
			require.LessOrEqual(t, backlog["outbox"], int64(statsRows+statsStrata*statsSample+10))
			require.NoError(t, admin.readWaiting(t.Context(), tx, &stats))
			require.NoError(t, admin.readFailing(t.Context(), tx, &stats))
			waiting := read()
			require.LessOrEqual(t, waiting["outbox"]-backlog["outbox"], int64(statsRows+statsFailing+10))
			require.NoError(t, admin.readDead(t.Context(), tx, &stats))
			require.NoError(t, admin.readBlocked(t.Context(), tx, &stats))
			require.NoError(t, admin.readAway(t.Context(), tx, &stats))
			all := read()
			require.LessOrEqual(t, all["outbox"]-waiting["outbox"], int64(100*(statsHeld+1)+10))
			require.LessOrEqual(t, all["outbox_dead_letters"], int64(2*statsRows+3*200+100+10))
			for _, table := range []string{"outbox", "outbox_dead_letters"} {
				require.Zero(t, all[table+" as a whole"])
			}

			require.True(t, stats.Backlog.Estimated)
			require.InEpsilon(t, total-100_000, stats.Backlog.Rows, 0.05)
			require.InDelta(t, 24*time.Hour-100*time.Second, stats.OldestAge, float64(10*time.Minute))
			require.True(t, stats.Held.Estimated)
			require.InEpsilon(t, 200_000, stats.Held.Rows, 0.1)
			require.Equal(t, Count{1, false}, stats.NotDue)
			require.InEpsilon(t, 100_000, stats.Due.Rows, 0.2)
			require.Equal(t, "orders", stats.Destinations[0].Destination)
			require.InEpsilon(t, 225_000, stats.Destinations[0].Backlog.Rows, 0.1)
			require.InEpsilon(t, 75_000, stats.Destinations[1].Backlog.Rows, 0.1)
			require.True(t, stats.DeadLetters.Estimated)
			require.InEpsilon(t, 150_000, stats.DeadLetters.Rows, 0.05)
			require.Len(t, stats.DeadLetterGroups, 3)
			require.Equal(t, Count{100, false}, stats.BlockedUnits)
			require.Len(t, stats.Blocked, 100)
			require.Equal(t, Count{200, false}, stats.Blocked[0].Held)
		})
	}
}

// Up to the bound nothing is estimated, wherever the rows are.
func TestStatsAreExactUpToTheBound(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (seq, id, destination, payload) OVERRIDING SYSTEM VALUE
		SELECT CASE WHEN n = 1 THEN 1 ELSE 4611686018427387904 + n END, n, 'orders', 'x' FROM generate_series(1, $1) AS n`, statsRows)
	require.NoError(t, err)
	admin, err := NewAdmin(db.DB, db.Schema)
	require.NoError(t, err)
	stats, err := admin.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, Count{statsRows, false}, stats.Backlog)
	require.Equal(t, Count{statsRows, false}, stats.Due)

	// One more, and the first is still found.
	_, err = db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (seq, id, destination, payload) OVERRIDING SYSTEM VALUE VALUES (9223372036854775807, 'x', 'orders', 'x')`)
	require.NoError(t, err)
	stats, err = admin.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, Count{statsRows, false}, Count{stats.Backlog.Rows - 1, false})
}

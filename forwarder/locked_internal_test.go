package forwarder

import (
	"database/sql"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Units of which somebody has a row locked are passed by, also while something is away, and where
// such a unit fills the head by itself.
func TestClaimPassesALockedUnitOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		away []string
		hot  int // rows of the locked unit, at the head
	}{
		"one row":                           {hot: 1},
		"one row, and something is away":    {hot: 1, away: []string{"elsewhere"}},
		"many rows":                         {hot: 250},
		"many rows, and something is away":  {hot: 250, away: []string{"elsewhere"}},
		"a batch of rows":                   {hot: 100},
		"more than there are of all others": {hot: 990},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
				SELECT n, 'orders', CASE WHEN n <= $1 THEN 'hot' ELSE 'k' || n % 10 END, 'x' FROM generate_series(1, 1000) AS n ORDER BY n`, test.hot)
			require.NoError(t, err)
			w := newTestWorker(t, db, Config{Workers: 1, BatchSize: 100})
			w.claimer.marks.leaveOut(test.away, false)
			lockRow(t, db, `SET payload = 'y' WHERE seq = 1`)
			w.passUntil = time.Now().Add(time.Hour)
			taken, err := w.claim(t.Context(), begin(t, w))
			require.NoError(t, err)
			require.NotEmpty(t, taken.rows)
			require.Greater(t, taken.rows[0].seq, int64(test.hot))
		})
	}
}

// A row that is due does not go ahead of one of its unit in the flow that somebody has locked.
func TestDueRowStaysBehindALockedOne(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		SELECT n, 'orders', 'k' || n % 2, 'x' FROM generate_series(1, 4) AS n ORDER BY n`)
	require.NoError(t, err)
	run(t, db, `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = now() - interval '1 hour', attempts = 1 WHERE seq >= 3`)
	w := newTestWorker(t, db, Config{Workers: 1})
	lockRow(t, db, `SET payload = 'y' WHERE seq = 1`)
	w.passUntil = time.Now().Add(time.Hour)
	taken, err := w.claim(t.Context(), begin(t, w))
	require.NoError(t, err)
	require.Equal(t, []int64{2, 4}, seqs(taken))
}

// A driver that keeps statements prepared does not keep one for each lane.
func TestClaimsHaveFewStatements(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 4})
	pool, err := sql.Open("pgx", db.DSN)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	pool.SetMaxOpenConns(1)
	w.db, w.claimer = pool, newClaimer(w.config, w.claimer.marks, pool)
	for range 50 {
		tx := begin(t, w)
		_, err = w.claimer.claim(t.Context(), tx, request{lane: anyLane, waiting: true})
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
	}
	var prepared int
	require.NoError(t, pool.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_catalog.pg_prepared_statements`).Scan(&prepared))
	require.Less(t, prepared, 10)
}

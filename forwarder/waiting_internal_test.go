package forwarder

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Thousands of rows that failed, and many more behind them, cost a claim nothing: it reads
// as few of them as if they were not there.
func TestRowsThatWaitCostAClaimNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1, BatchSize: 100})
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload, next_attempt_at, last_error)
		SELECT n, 'orders', 'failing-' || n % 2000, 'x', CASE WHEN n <= 2000 THEN now() + interval '1 hour' END, CASE WHEN n <= 2000 THEN 'no' END
		FROM generate_series(1, 20000) AS n ORDER BY n`)
	require.NoError(t, err)
	for parked := 0; parked < 18_000; { // in the first claims that meet them
		tx := begin(t, w)
		taken, err := w.claimer.claim(t.Context(), tx, request{waiting: true})
		require.NoError(t, err)
		require.Empty(t, taken.rows)
		require.Positive(t, taken.parked)
		require.NoError(t, tx.Commit())
		parked += taken.parked
	}
	requireMark(t, w, 20_000)

	_, err = db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload)
		SELECT n, 'orders', 'x' FROM generate_series(20001, 20100) AS n ORDER BY n`)
	require.NoError(t, err)
	for _, ask := range []request{{waiting: true}, {}} {
		tx := begin(t, w)
		before := tuplesRead(t, tx, db)
		taken, err := w.claimer.claim(t.Context(), tx, ask)
		require.NoError(t, err)
		require.Len(t, taken.rows, 100)
		require.Less(t, tuplesRead(t, tx, db)-before, int64(1000))
		require.NoError(t, tx.Rollback())
	}
}

// tuplesRead is how many rows of the outbox, and entries of its indexes, the session has read.
func tuplesRead(t *testing.T, tx *sql.Tx, db *testdb.DB) (read int64) {
	t.Helper()
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT pg_stat_get_xact_tuples_fetched($1::text::regclass)
		+ pg_stat_get_xact_tuples_returned($1::text::regclass)
		+ (SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index WHERE indrelid = $1::text::regclass)`,
		db.Schema.Outbox()).Scan(&read))
	return read
}

// Units of which a claim took all that waits are not parked again, or a busy one would never
// leave.
func TestUnitThatHasCaughtUpFlowsAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1, BatchSize: 4})
	park(t, db, w)
	setNextAttempt(t, db, `now() WHERE seq = 1`)
	require.Equal(t, []int64{1}, claimAndSettle(t, w))
	insertOne(t, db, "orders")
	require.Equal(t, []int64{2, 3, 4}, claimAndSettle(t, w))

	park2 := func(rows int) {
		for range rows {
			insertOne(t, db, "orders")
		}
		setNextAttempt(t, db, `'infinity'`)
		setNextAttempt(t, db, `now() WHERE seq = (SELECT min(seq) FROM `+db.Schema.Outbox()+`)`)
	}
	park2(6)
	insertOne(t, db, "orders")
	require.Equal(t, []int64{5, 6, 7, 8}, claimAndSettle(t, w), "more waits than a claim may take")
	require.Equal(t, []int64{9, 10, 11}, claimAndSettle(t, w))
}

// A row that is due waits for those of its unit that are in the flow before it: a forwarder with
// Ordering None has left them there. What else a batch holds does not matter.
func TestRowThatIsDueDoesNotOvertakeTheFlow(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"rows":       {BatchSize: 4},
		"one row":    {BatchSize: 1},
		"bytes":      {BatchBytes: 20},
		"many bytes": {BatchBytes: 2000},
		"all":        {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			for n := range 12 {
				insertOne(t, db, "orders")
				if n < 6 {
					insertRows(t, db, 1)
				}
			}
			// The last of the unit, a row that takes a batch of its own, and one after all others.
			setNextAttempt(t, db, `now(), last_error = 'no' WHERE seq = 17`)
			setNextAttempt(t, db, `now(), last_error = 'no', payload = repeat('x', 3000) WHERE seq = 18`)
			setNextAttempt(t, db, `now(), last_error = 'no', partition_key = 'other' WHERE seq = 16`)
			cfg.Workers = 1
			w := newTestWorker(t, db, cfg)
			var sent []int64
			for turn := 0; turn < 100 && len(sent) < 18; turn++ {
				sent = append(sent, claimAndSettle(t, w)...)
			}
			require.Len(t, sent, 18, "rows stand still")
			var unit []int64
			for _, seq := range sent {
				if seq > 12 && seq != 16 || seq%2 == 1 {
					unit = append(unit, seq)
				}
			}
			require.IsIncreasing(t, unit)
		})
	}
}

package forwarder

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

func newTestWorker(t *testing.T, db *testdb.DB, cfg Config) *worker {
	t.Helper()
	cfg.Schema = db.Schema
	f, err := New(db.DB, nopPublisher{}, cfg, nil)
	require.NoError(t, err)
	version, err := f.inspectDatabase(t.Context())
	require.NoError(t, err)
	return f.workers(version)()
}

func begin(t *testing.T, w *worker) *sql.Tx {
	t.Helper()
	tx, err := w.begin(t.Context(), 1)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func seqs(taken claim) []int64 {
	list := []int64{}
	for _, r := range taken.rows {
		list = append(list, r.seq)
	}
	return list
}

func insertRows(t *testing.T, db *testdb.DB, rows int) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload)
		SELECT n, 'orders', 'x' FROM generate_series(1, $1) AS n ORDER BY n`, rows)
	require.NoError(t, err)
}

// The interleaving that a claim in one statement gets wrong: the second claimer's
// transaction is under way, and has read, while the first still holds the lanes; then
// the first settles, and the second wins the lanes. It must not see what is settled.
func TestClaimNeverSeesWhatTheLastHolderSettled(t *testing.T) {
	t.Parallel()
	for _, settlement := range []Settlement{Delete, MarkPublished} {
		t.Run(string(settlement), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			insertRows(t, db, 5)
			w := newTestWorker(t, db, Config{Workers: 1, BatchSize: 3, Settlement: settlement})

			first, second := begin(t, w), begin(t, w)
			claimed, err := w.claimer.claim(t.Context(), first, request{})
			require.NoError(t, err)
			require.Equal(t, []int64{1, 2, 3}, seqs(claimed))
			none, err := w.claimer.claim(t.Context(), second, request{})
			require.NoError(t, err)
			require.Empty(t, none.rows, "the lanes are taken")

			require.NoError(t, w.settler.settle(t.Context(), first, seqs(claimed)))
			require.NoError(t, first.Commit())

			claimed, err = w.claimer.claim(t.Context(), second, request{})
			require.NoError(t, err)
			require.Equal(t, []int64{4, 5}, seqs(claimed))
		})
	}
}

// Workers share the lanes out: two claims of a forwarder with two workers meet
// disjoint halves, and a third finds nothing free.
func TestWorkersShareTheLanes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 1000)
	w := newTestWorker(t, db, Config{Workers: 2, BatchSize: 1000})
	seen := map[int64]bool{}
	for range 2 {
		claimed, err := w.claimer.claim(t.Context(), begin(t, w), request{})
		require.NoError(t, err)
		require.NotEmpty(t, claimed.rows)
		require.IsIncreasing(t, seqs(claimed))
		for _, seq := range seqs(claimed) {
			require.False(t, seen[seq])
			seen[seq] = true
		}
	}
	require.Len(t, seen, 1000)
	claimed, err := w.claimer.claim(t.Context(), begin(t, w), request{})
	require.NoError(t, err)
	require.Empty(t, claimed.rows)
}

// Whatever the server's defaults are, a claim has bounds of its own.
func TestClaimTransactionHasBounds(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{PublishTimeout: 7 * time.Second, DatabaseTimeout: 3 * time.Second})
	tx := begin(t, w)
	for setting, want := range map[string]string{
		"idle_in_transaction_session_timeout": "12s",
		"statement_timeout":                   "3s",
		"lock_timeout":                        "300ms",
		"bytea_output":                        "hex",
		"client_encoding":                     "UTF8",
		"transaction_isolation":               "read committed",
	} {
		var got string
		require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT current_setting($1)`, setting).Scan(&got))
		require.Equal(t, want, got, setting)
	}
	require.Contains(t, boundsQuery(w.config, 170000, 1), "SET LOCAL transaction_timeout = 24000")
	require.NotContains(t, boundsQuery(w.config, 160009, 1), "transaction_timeout")
}

// Where no attempt is spent, the delay grows with the row's age.
func TestDelayGrowsWithAge(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 1)
	w := newTestWorker(t, db, Config{RetryInitial: time.Minute, RetryMax: 10 * time.Minute})
	for age, want := range map[string]time.Duration{
		`now()`: time.Minute, `now() - interval '20 minutes'`: 5 * time.Minute, `now() - interval '1 day'`: 10 * time.Minute,
		`now() + interval '1 day'`: time.Minute, `'-infinity'`: time.Minute, `'infinity'`: time.Minute,
	} {
		_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET created_at = `+age)
		require.NoError(t, err)
		tx := begin(t, w)
		require.NoError(t, w.settler.delay(t.Context(), tx, []failure{{row: row{seq: 1}, err: errNotSent}}))
		require.NoError(t, tx.Commit())
		var seconds float64
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT extract(epoch FROM next_attempt_at - clock_timestamp())
			FROM `+db.Schema.Outbox()+` WHERE attempts = 0`).Scan(&seconds))
		require.InDelta(t, want.Seconds(), seconds, want.Seconds()*0.25, age)
	}
}

// The delay grows with the attempts that a row has spent, up to its bound.
func TestDelayGrows(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 1)
	w := newTestWorker(t, db, Config{RetryInitial: time.Minute, RetryMax: 10 * time.Minute})
	for attempt, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
		tx := begin(t, w)
		require.NoError(t, w.settler.delay(t.Context(), tx, []failure{{row: row{seq: 1}, spent: 1, err: errNotSent}}))
		require.NoError(t, tx.Commit())
		var (
			seconds  float64
			attempts int
			text     string
		)
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT extract(epoch FROM next_attempt_at - clock_timestamp()), attempts, last_error
			FROM `+db.Schema.Outbox()).Scan(&seconds, &attempts, &text))
		require.Equal(t, attempt+1, attempts)
		require.Equal(t, errNotSent.Error(), text)
		require.InDelta(t, want.Seconds(), seconds, want.Seconds()*0.25)
	}
}

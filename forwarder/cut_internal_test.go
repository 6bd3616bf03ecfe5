package forwarder

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A row of the flow that did not fit beside those that were due is not passed by the marks:
// later ones of its unit would overtake it.
func TestMarksDoNotPassWhatDidNotFit(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1, BatchBytes: 100})
	insertPayload(t, db, "due", 60)
	setNextAttempt(t, db, `now() + interval '1 hour', last_error = 'no', attempts = 1 WHERE seq = 1`)
	requireMark(t, w, 0) // until something is found, nothing is known
	insertPayload(t, db, "later", 60)
	require.Equal(t, []int64{2}, claimAndSettle(t, w))
	requireMark(t, w, 2)

	insertPayload(t, db, "later", 60)
	require.Eventually(t, func() bool { // the horizon passes row 3 while it is left in the outbox
		tx := begin(t, w)
		taken, err := w.claimer.claim(t.Context(), tx, request{})
		require.NoError(t, err)
		require.Equal(t, []int64{3}, seqs(taken))
		require.NoError(t, tx.Rollback())
		return safeSeq(w) >= 3
	}, 30*time.Second, time.Millisecond)
	setNextAttempt(t, db, `now() WHERE seq = 1`)
	require.Equal(t, []int64{1}, claimAndSettle(t, w), "there is no room for the other")
	insertPayload(t, db, "later", 10)
	require.Equal(t, []int64{3, 4}, claimAndSettle(t, w))
}

func insertPayload(t *testing.T, db *testdb.DB, key string, bytes int) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		VALUES ('x', 'orders', $1, $2)`, key, strings.Repeat("x", bytes))
	require.NoError(t, err)
}

func safeSeq(w *worker) int64 {
	m := w.claimer.marks
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.horizon.safe
}

// A claim that waited for a row which others then had wait, or moved to the dead letters, sends
// nothing that is behind it: what it saw before it waited does not hold any more.
func TestClaimDoesNotOvertakeWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, change string }{
		"flow, delayed":    {change: `UPDATE %outbox SET next_attempt_at = now() + interval '1 hour', last_error = 'no' WHERE seq = 1`},
		"flow, blocked":    {change: blockFirst},
		"waiting, delayed": {before: parkAll, change: `UPDATE %outbox SET next_attempt_at = now() + interval '1 hour', last_error = 'no' WHERE seq = 1`},
		"waiting, blocked": {before: parkAll, change: blockFirst},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			w := newTestWorker(t, db, Config{Workers: 1, DatabaseTimeout: time.Hour, OnDeadLetter: Block})
			for range 3 {
				insertOne(t, db, "orders")
			}
			insertPayload(t, db, "another", 1)
			tables := strings.NewReplacer("%outbox", db.Schema.Outbox(), "%dead", db.Schema.DeadLetters())
			if test.before != "" {
				_, err := db.ExecContext(t.Context(), tables.Replace(test.before))
				require.NoError(t, err)
			}
			other, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			defer func() { _ = other.Rollback() }()
			_, err = other.ExecContext(t.Context(), tables.Replace(test.change))
			require.NoError(t, err)

			tx := begin(t, w)
			claimed := claimWhileWaiting(t, db, w, tx, other)
			require.Equal(t, []int64{4}, seqs(claimed))
			require.NoError(t, tx.Commit())
			require.Empty(t, claimAndSettleWithout(t, w, 4))
		})
	}
}

const (
	parkAll    = `UPDATE %outbox SET next_attempt_at = CASE WHEN seq = 1 THEN now() ELSE 'infinity' END WHERE seq < 4`
	blockFirst = `WITH dead AS (DELETE FROM %outbox WHERE seq = 1 RETURNING *)
		INSERT INTO %dead (seq, id, destination, partition_key, payload, metadata, created_at, attempts, error, blocks)
		SELECT seq, id, destination, partition_key, payload, metadata, created_at, 1, 'no', true FROM dead`
)

func claimAndSettleWithout(t *testing.T, w *worker, seq int64) []int64 {
	t.Helper()
	left := []int64{}
	for _, s := range claimAndSettle(t, w) {
		if s != seq {
			left = append(left, s)
		}
	}
	return left
}

// claimWhileWaiting commits other once the claim waits for it.
func claimWhileWaiting(t *testing.T, db *testdb.DB, w *worker, tx, other *sql.Tx) (claimed claim) {
	t.Helper()
	var pid int
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
	var (
		wait sync.WaitGroup
		err  error
	)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait.Go(func() { claimed, err = w.claimer.claim(ctx, tx, request{waiting: true}) })
	require.Eventually(t, func() bool {
		var waiting bool
		err := db.QueryRowContext(t.Context(), `SELECT cardinality(pg_blocking_pids($1)) > 0`, pid).Scan(&waiting)
		return err == nil && waiting
	}, 30*time.Second, 2*time.Millisecond)
	require.NoError(t, other.Commit())
	wait.Wait()
	require.NoError(t, err)
	return claimed
}

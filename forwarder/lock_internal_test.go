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

// lockRow is an operator's transaction at work on a row.
func lockRow(t *testing.T, db *testdb.DB, update string) *sql.Tx {
	t.Helper()
	operator, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = operator.Rollback() })
	_, err = operator.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` `+update)
	require.NoError(t, err)
	return operator
}

// A claim that waited for an operator's transaction sends what the operator wrote.
func TestClaimSeesWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 3)
	w := newTestWorker(t, db, Config{Workers: 1, DatabaseTimeout: time.Hour})
	operator := lockRow(t, db, `SET destination = 'elsewhere', payload = 'corrected' WHERE seq = 1`)
	tx := begin(t, w)
	var pid int
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))

	var (
		wait    sync.WaitGroup
		claimed claim
		err     error
	)
	wait.Go(func() { claimed, err = w.claim(t.Context(), tx) })
	require.Eventually(t, func() bool {
		var waiting bool
		err := db.QueryRowContext(t.Context(), `SELECT cardinality(pg_blocking_pids($1)) > 0`, pid).Scan(&waiting)
		return err == nil && waiting
	}, 30*time.Second, 2*time.Millisecond)
	require.NoError(t, operator.Commit())
	wait.Wait()

	require.NoError(t, err)
	require.Equal(t, []int64{1, 2, 3}, seqs(claimed))
	require.Equal(t, "elsewhere", claimed.rows[0].outgoing.Destination)
	require.Equal(t, "corrected", string(claimed.rows[0].outgoing.Message.Payload))
}

// The wait for a foreign lock is bounded; after it only the locked row's unit stands
// still, and it is not overtaken.
func TestClaimPassesUnitsThatStayLocked(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 3)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		VALUES ('4', 'orders', '2', 'x'), ('5', 'orders', '1', 'x')`) // the units of rows 2 and 1
	require.NoError(t, err)
	w := newTestWorker(t, db, Config{Workers: 1, DatabaseTimeout: time.Second})
	operator := lockRow(t, db, `SET attempts = 0 WHERE seq = 2`)

	_, err = w.claim(t.Context(), begin(t, w))
	require.True(t, hasSQLState(err, lockNotAvailable), "%v", err)

	first := begin(t, w)
	claimed, err := w.claim(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 3, 5}, seqs(claimed))
	require.NoError(t, first.Rollback())

	require.NoError(t, operator.Commit())
	claimed, err = w.claim(t.Context(), begin(t, w))
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2, 3, 4, 5}, seqs(claimed))
}

// countingContext counts what is registered on it.
type countingContext struct {
	context.Context //nolint:containedctx // it decorates one

	mu     sync.Mutex
	active int
}

func (c *countingContext) AfterFunc(func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active++
	return sync.OnceValue(func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.active--
		return true
	})
}

func (c *countingContext) Done() <-chan struct{} { return make(chan struct{}) }

// An idle forwarder polls for months: no turn may leave anything behind on the context.
func TestTurnLeavesNothingOnTheContext(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{})
	ctx := &countingContext{Context: t.Context()}
	for range 2 {
		out, err := w.forwardBatch(ctx, w.claim)
		require.NoError(t, err)
		require.Zero(t, out.claimed)
	}
	insertRows(t, db, 3)
	_, err := w.forwardBatch(ctx, w.claim)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), `DROP TABLE `+db.Schema.Outbox())
	require.NoError(t, err)
	_, err = w.forwardBatch(ctx, w.claim)
	require.Error(t, err)
	require.Zero(t, ctx.active)
}

// Held rows are looked up by their index, whatever the size of the table, and the head of
// the table by the primary key, whatever the statistics say: those of an outbox are from
// when it was empty.
func TestClaimUsesTheIndexes(t *testing.T) {
	t.Parallel()
	for name, analyzed := range map[string]bool{"statistics of an empty table": false, "statistics": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			analyze := func() {
				_, err := db.ExecContext(t.Context(), `VACUUM ANALYZE `+db.Schema.Outbox())
				require.NoError(t, err)
			}
			analyze()
			insertRows(t, db, 50_000)
			_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = now() + interval '1 hour' WHERE seq <= 500`)
			require.NoError(t, err)
			if analyzed {
				analyze()
			}
			for _, ordering := range []Ordering{PerKey, None} {
				w := newTestWorker(t, db, Config{Ordering: ordering})
				plan := explain(t, begin(t, w), w.claimer.flow.query,
					"{}", 0, window, 64, "{1,2,3,4,5,6,7,8,9}", "{}", 500, 1024)
				require.Contains(t, plan, "Index Scan using outbox_pkey")
				require.NotContains(t, plan, "Seq Scan on outbox")
				plan = explain(t, begin(t, w), w.claimer.flow.heldBack.held, "{1,2,3,4,5,6,7,8,9}", "{}")
				require.Contains(t, plan, "Index Scan using outbox_pkey")
				require.NotContains(t, plan, "Seq Scan on outbox")
				require.Contains(t, plan, "Index Cond: ((unit_hash = head.unit_hash) AND (seq < head.seq))")
				plan = explain(t, begin(t, w), w.claimer.flow.heldBack.any)
				require.NotContains(t, plan, "Seq Scan on outbox")
				plan = explain(t, begin(t, w), w.claimer.flow.heldBack.missing,
					"{}", 0, window, 64, "{1,2,3,4,5,6,7,8,9}", "{}", "{1,2,3,4,5,6,7,8,9}")
				require.Contains(t, plan, "Index Scan using outbox_pkey")
				require.NotContains(t, plan, "Seq Scan on outbox")
				plan = explain(t, begin(t, w), w.claimer.flow.contents, "{1,2,3,4,5,6,7,8,9}")
				require.Contains(t, plan, "Index Scan using outbox_pkey")
				plan = explain(t, begin(t, w), w.claimer.waiting.query, 500, 1<<20, "{}", 125, 64, "{1,2,3,4,5,6,7,8,9}", "{}")
				require.Contains(t, plan, "Index Scan using outbox_backoff_idx on outbox f")
				require.Contains(t, plan, "Index Cond: (next_attempt_at <= statement_timestamp())")
				require.Contains(t, plan, "Index Scan using outbox_pkey")
				require.NotContains(t, plan, "Seq Scan on outbox")
				if ordering == PerKey {
					require.Contains(t, plan, "Index Cond: ((unit_hash = f.unit_hash) AND (seq < f.seq))")
					require.Contains(t, plan, "Index Cond: ((unit_hash = due.unit_hash) AND (seq >= due.seq))")
				}
			}
		})
	}
}

func explain(t *testing.T, tx *sql.Tx, query string, args ...any) string {
	t.Helper()
	rows, err := tx.QueryContext(t.Context(), `EXPLAIN `+query, args...)
	require.NoError(t, err)
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		plan = append(plan, line)
	}
	require.NoError(t, rows.Err())
	return strings.Join(plan, "\n")
}

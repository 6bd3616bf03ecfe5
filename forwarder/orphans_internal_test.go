package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// park has a unit's first row wait and those behind it be parked.
func park(t *testing.T, db *testdb.DB, w *worker) {
	t.Helper()
	for range 3 {
		insertOne(t, db, "orders")
	}
	setNextAttempt(t, db, `now() + interval '1 hour', last_error = 'no', attempts = 1 WHERE seq = 1`)
	require.Empty(t, claimAndSettle(t, w))
	requireParked(t, db, 2)
}

func requireParked(t *testing.T, db *testdb.DB, want int) {
	t.Helper()
	var parked int
	require.NoError(t, db.QueryRowContext(t.Context(),
		`SELECT count(*) FROM `+db.Schema.Outbox()+` WHERE next_attempt_at = 'infinity'`).Scan(&parked))
	require.Equal(t, want, parked)
}

// An operator deletes the row that others wait for: they go on.
func TestPatrolFindsRowsParkedBehindNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	patrol := newPatrol(w)
	park(t, db, w)
	require.NoError(t, patrol.adopt(t.Context()))
	require.Empty(t, claimAndSettle(t, w), "the first waits still")

	_, err := db.ExecContext(t.Context(), `DELETE FROM `+db.Schema.Outbox()+` WHERE seq = 1`)
	require.NoError(t, err)
	require.Empty(t, claimAndSettle(t, w))
	holder := begin(t, w) // another claim
	_, _, err = w.claimer.claimLanes(t.Context(), holder)
	require.NoError(t, err)
	require.NoError(t, patrol.adopt(t.Context()))
	requireParked(t, db, 2)
	require.NoError(t, holder.Rollback())

	require.NoError(t, patrol.adopt(t.Context()))
	require.Equal(t, []int64{2, 3}, claimAndSettle(t, w))
}

// An operator has the first row tried at once: it is not overtaken by those behind it.
func TestPatrolLeavesRowsParkedBehindOneOfTheFlow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	patrol := newPatrol(w)
	park(t, db, w)
	insertRows(t, db, 10)
	require.Len(t, claimAndSettle(t, w), 10)
	requireMark(t, w, 13)
	setNextAttempt(t, db, `NULL WHERE seq = 1`)
	require.NoError(t, patrol.adopt(t.Context()))
	requireParked(t, db, 2)
	require.NoError(t, patrol.look(t.Context()))
	require.Equal(t, []int64{1}, claimAndSettle(t, w))
	require.NoError(t, patrol.adopt(t.Context()))
	require.Equal(t, []int64{2, 3}, claimAndSettle(t, w))
}

// Rows behind a dead letter that blocks their unit stay where they are.
func TestPatrolLeavesBlockedUnits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1, OnDeadLetter: Block})
	patrol := newPatrol(w)
	park(t, db, w)
	setNextAttempt(t, db, `now() WHERE seq = 1`)
	tx := begin(t, w)
	taken, err := w.claimer.claim(t.Context(), tx, request{waiting: true})
	require.NoError(t, err)
	require.Equal(t, []int64{1}, seqs(taken), "what has failed is tried alone")
	v := verdict{dead: []failure{{row: taken.rows[0], err: errNotSent}}}
	require.NoError(t, w.settler.write(t.Context(), tx, &v))
	require.NoError(t, tx.Commit())

	insertOne(t, db, "orders")
	require.Empty(t, claimAndSettle(t, w))
	require.NoError(t, patrol.adopt(t.Context()))
	requireParked(t, db, 3)
}

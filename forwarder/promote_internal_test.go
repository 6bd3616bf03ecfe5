package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// insertColliding inserts rows of two units that have the same hash: g of the destination gone,
// u of the destination up.
func insertColliding(t *testing.T, db *testdb.DB, rows string) {
	t.Helper()
	for _, r := range rows {
		unit := Unit{Destination: "gone", PartitionKey: "k39705"}
		if r == 'u' {
			unit = Unit{Destination: "up", PartitionKey: "k3382"}
		}
		_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			VALUES ('x', $1, $2, 'x')`, unit.Destination, unit.PartitionKey)
		require.NoError(t, err)
	}
}

// Where hashes collide, what is let go on has no row of its own unit before it.
func TestUnitsOfOneHashDoNotOvertakeThemselves(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	insertColliding(t, db, "gug")
	setNextAttempt(t, db, `now(), last_error = 'no' WHERE seq = 2`)
	setNextAttempt(t, db, `'infinity' WHERE seq = 3`)
	w.claimer.marks.leaveOut([]string{"gone"}, false)
	require.Equal(t, []int64{2}, claimAndSettle(t, w))
	requireParked(t, db, 1)
	patrol := newPatrol(w)
	require.NoError(t, patrol.tour(t.Context()))
	requireParked(t, db, 1)
	w.claimer.marks.leaveOut(nil, true)
	require.Equal(t, []int64{1}, claimAndSettle(t, w))
	require.NoError(t, patrol.tour(t.Context()))
	require.Equal(t, []int64{3}, claimAndSettle(t, w))
}

// A unit does not stand still with another of its hash, whose destination is away.
func TestUnitsOfOneHashAreAdoptedApart(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	insertColliding(t, db, "gguu")
	setNextAttempt(t, db, `'infinity' WHERE seq <> 1`)
	setNextAttempt(t, db, `now() WHERE seq = 2`)
	w.claimer.marks.leaveOut([]string{"gone"}, false)
	require.Empty(t, claimAndSettle(t, w))
	require.NoError(t, newPatrol(w).tour(t.Context()))
	require.Equal(t, []int64{3}, claimAndSettle(t, w)[:1])
	require.NoError(t, newPatrol(w).tour(t.Context()))
	require.Empty(t, claimUp(t, w, db))
}

// claimUp claims until nothing of the destination up is left, and returns what is.
func claimUp(t *testing.T, w *worker, db *testdb.DB) (left []int64) {
	t.Helper()
	for range 3 {
		claimAndSettle(t, w)
	}
	rows, err := db.QueryContext(t.Context(), `SELECT seq FROM `+db.Schema.Outbox()+` WHERE destination = 'up'`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var seq int64
		require.NoError(t, rows.Scan(&seq))
		left = append(left, seq)
	}
	require.NoError(t, rows.Err())
	return left
}

// Somebody else has the next row of a unit when its turn comes: the one after it is not let go on
// instead, since the first may be put back into the flow.
func TestPromotionDoesNotPassWhatIsLocked(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	park(t, db, w) // 1 waits, 2 and 3 are parked
	setNextAttempt(t, db, `now() WHERE seq = 1`)
	operator := lockRow(t, db, `SET next_attempt_at = NULL WHERE seq = 2`)
	require.Equal(t, []int64{1}, claimAndSettle(t, w))
	require.NoError(t, operator.Commit())
	requireParked(t, db, 1)
	require.NoError(t, newPatrol(w).tour(t.Context()))
	requireParked(t, db, 1)
	require.NoError(t, newPatrol(w).look(t.Context()))
	require.Equal(t, []int64{2}, claimAndSettle(t, w))
	require.NoError(t, newPatrol(w).tour(t.Context()))
	require.Equal(t, []int64{3}, claimAndSettle(t, w))
}

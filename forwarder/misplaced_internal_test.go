package forwarder

import (
	"testing"
	"time"

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
	require.NoError(t, patrol.tour(t.Context()))
	require.Empty(t, claimAndSettle(t, w), "the first waits still")

	_, err := db.ExecContext(t.Context(), `DELETE FROM `+db.Schema.Outbox()+` WHERE seq = 1`)
	require.NoError(t, err)
	require.Empty(t, claimAndSettle(t, w))
	holder := begin(t, w) // another claim
	_, err = w.claimer.occupy(t.Context(), holder, request{lane: anyLane})
	require.NoError(t, err)
	toured := make(chan error, 1)
	go func() { toured <- patrol.tour(t.Context()) }()
	require.Eventually(t, func() bool {
		var waiting int
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND (classid::bigint << 32 | objid::bigint) - $1 BETWEEN 0 AND 4095`, w.claimer.lockBase).Scan(&waiting))
		return waiting == 1
	}, 30*time.Second, time.Millisecond, "it waits for the lane")
	requireParked(t, db, 2)
	require.NoError(t, holder.Rollback())
	require.NoError(t, <-toured)
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
	require.NoError(t, patrol.tour(t.Context()))
	requireParked(t, db, 2)
	require.NoError(t, patrol.look(t.Context()))
	require.Equal(t, []int64{1}, claimAndSettle(t, w))
	require.NoError(t, patrol.tour(t.Context()))
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
	require.NoError(t, patrol.tour(t.Context()))
	requireParked(t, db, 3)
}

// However many rows wait, a statement reads a few of them, and all have their turn.
func TestTourGoesThroughAllThatWaits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1, BatchSize: 1000})
	const units, rows = 40, 400
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload, next_attempt_at)
		SELECT n, 'orders', 'key-' || n % $1, 'x', 'infinity' FROM generate_series(1, $2) AS n ORDER BY n`, units, rows)
	require.NoError(t, err)
	patrol := newPatrol(w)
	patrol.window = 7
	visits := 0
	for end := false; !end; visits++ {
		tx := begin(t, w)
		before := tuplesRead(t, tx, db)
		_, _, err := patrol.findMisplaced(t.Context(), tx, patrol.stop)
		require.NoError(t, err)
		require.Less(t, tuplesRead(t, tx, db)-before, int64(100))
		require.NoError(t, tx.Rollback())
		patrol.stop, err = patrol.visit(t.Context(), patrol.stop)
		require.NoError(t, err)
		end = patrol.stop == stop{}
	}
	require.Equal(t, rows/patrol.window+1, visits)
	requireParked(t, db, rows-units)
	claimed := map[int64]bool{}
	for _, seq := range claimAndSettle(t, w) {
		claimed[seq] = true
	}
	for seq := range int64(units) {
		require.True(t, claimed[seq+1], "the first of each unit goes on")
	}
}

// A window in which something fails does not keep others from having their turn.
func TestTourGoesOnBehindWhatFails(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload, next_attempt_at)
		SELECT n, 'orders', 'x', 'infinity' FROM generate_series(1, 20) AS n ORDER BY n`)
	require.NoError(t, err)
	first := `seq = (SELECT seq FROM ` + db.Schema.Outbox() + ` ORDER BY unit_hash, seq LIMIT 1)`
	setNextAttempt(t, db, `'infinity', last_error = 'stays' WHERE `+first)
	_, err = db.ExecContext(t.Context(), `ALTER TABLE `+db.Schema.Outbox()+`
		ADD CONSTRAINT stays CHECK (last_error IS DISTINCT FROM 'stays' OR next_attempt_at = 'infinity')`)
	require.NoError(t, err)
	patrol := newPatrol(w)
	patrol.window = 4
	require.ErrorContains(t, patrol.tour(t.Context()), "stays")
	require.NoError(t, patrol.tour(t.Context()))
	requireParked(t, db, 4)
}

// An operator has all rows tried at once: those behind others are parked again, or each claim
// would read them.
func TestTourParksWhatWaitsForOthers(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	patrol := newPatrol(w)
	park(t, db, w)
	setNextAttempt(t, db, `now() + interval '1 hour'`)
	holder := begin(t, w) // another claim
	_, err := w.claimer.occupy(t.Context(), holder, request{lane: anyLane})
	require.NoError(t, err)
	require.NoError(t, patrol.tour(t.Context()))
	requireParked(t, db, 0)
	require.NoError(t, holder.Rollback())
	for _, window := range []int{1, 2, 100} {
		setNextAttempt(t, db, `now() + interval '1 hour'`)
		patrol.window = window
		require.NoError(t, patrol.tour(t.Context()))
		requireParked(t, db, 2)
	}
	setNextAttempt(t, db, `now() WHERE seq = 1`)
	require.Equal(t, []int64{1}, claimAndSettle(t, w))
	require.Equal(t, []int64{2, 3}, claimAndSettle(t, w))
}

// Rows wait for none where there is no order, whatever has parked them.
func TestTourLetsAllGoOnWhereThereIsNoOrder(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, newTestWorker(t, db, Config{Workers: 1}))
	w := newTestWorker(t, db, Config{Workers: 1, Ordering: None})
	patrol := newPatrol(w)
	patrol.window = 1
	require.NoError(t, patrol.tour(t.Context()))
	requireParked(t, db, 0)
	require.Equal(t, []int64{2, 3}, claimAndSettle(t, w), "the first waits still")
}

// A lane that is taken for long does not hold a tour up for ever.
func TestTourLeavesALaneThatIsTaken(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1, DatabaseTimeout: 500 * time.Millisecond})
	park(t, db, w)
	_, err := db.ExecContext(t.Context(), `DELETE FROM `+db.Schema.Outbox()+` WHERE seq = 1`)
	require.NoError(t, err)
	holder := begin(t, w)
	_, err = w.claimer.occupy(t.Context(), holder, request{lane: anyLane})
	require.NoError(t, err)
	require.NoError(t, newPatrol(w).tour(t.Context()))
	requireParked(t, db, 2)
}

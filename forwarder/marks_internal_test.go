package forwarder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// claimAndSettle is a turn of a worker.
func claimAndSettle(t *testing.T, w *worker) []int64 {
	t.Helper()
	tx := begin(t, w)
	taken, err := w.claimer.claim(t.Context(), tx, request{waiting: true})
	require.NoError(t, err)
	v := verdict{}
	for i := range taken.rows {
		v.confirm(&taken.rows[i])
	}
	require.NoError(t, w.settler.write(t.Context(), tx, &v))
	require.NoError(t, tx.Commit())
	return seqs(taken)
}

// requireMark claims again and again, until the marks of all lanes have come so far.
func requireMark(t *testing.T, w *worker, seq int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.Empty(t, claimAndSettle(t, w))
		return lowestMark(w) >= seq
	}, 30*time.Second, time.Millisecond)
	require.Equal(t, seq, lowestMark(w))
}

func lowestMark(w *worker) int64 {
	m := w.claimer.marks
	m.mu.Lock()
	defer m.mu.Unlock()
	lanes := m.lanes
	lowest := lanes[0]
	for _, mark := range lanes {
		lowest = min(lowest, mark)
	}
	return lowest
}

func orderings(t *testing.T, test func(t *testing.T, ordering Ordering)) {
	t.Helper()
	for _, ordering := range []Ordering{PerKey, None} {
		t.Run(string(ordering), func(t *testing.T) {
			t.Parallel()
			test(t, ordering)
		})
	}
}

// Rows of destinations that are away are passed once, and found again when they are back.
func TestMarksPassWhatIsAway(t *testing.T) {
	t.Parallel()
	orderings(t, func(t *testing.T, ordering Ordering) {
		db := testdb.New(t)
		insertRows(t, db, 500)
		w := newTestWorker(t, db, Config{Workers: 1, Ordering: ordering})
		w.claimer.marks.leaveOut([]string{"orders"}, false)
		requireMark(t, w, 500)
		insertOne(t, db, "elsewhere")
		require.Equal(t, []int64{501}, claimAndSettle(t, w))
		requireMark(t, w, 501)

		w.claimer.marks.leaveOut(nil, true)
		require.Len(t, claimAndSettle(t, w), 500)
		requireMark(t, w, 501)
	})
}

// So are rows that are marked as published.
func TestMarksPassWhatIsPublished(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 500)
	w := newTestWorker(t, db, Config{Workers: 1, Settlement: MarkPublished})
	require.Len(t, claimAndSettle(t, w), 500)
	insertRows(t, db, 1)
	require.Len(t, claimAndSettle(t, w), 1)
	requireMark(t, w, 501)
}

// A transaction that drew a lower seq and commits later is not passed: its row comes, and
// before any later one of its unit.
func TestMarksWaitForTransactionsUnderWay(t *testing.T) {
	t.Parallel()
	orderings(t, func(t *testing.T, ordering Ordering) {
		db := testdb.New(t)
		w := newTestWorker(t, db, Config{Workers: 1, Ordering: ordering})
		late, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = late.Rollback() }()
		_, err = late.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			VALUES ('late', 'orders', 'a', 'x')`)
		require.NoError(t, err)
		insertRows(t, db, 5)
		require.Equal(t, []int64{2, 3, 4, 5, 6}, claimAndSettle(t, w))
		for deadline := time.Now().Add(4 * horizonInterval); time.Now().Before(deadline); {
			require.Empty(t, claimAndSettle(t, w))
			insertRows(t, db, 1)
			require.Len(t, claimAndSettle(t, w), 1)
		}
		require.Zero(t, lowestMark(w))

		require.NoError(t, late.Commit())
		_, err = db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			VALUES ('later', 'orders', 'a', 'x')`)
		require.NoError(t, err)
		claimed := claimAndSettle(t, w)
		require.Len(t, claimed, 2)
		require.Equal(t, int64(1), claimed[0])
	})
}

// Rows that wait are passed, and so are those behind them in their units: they are found by
// other means when they are due.
func TestMarksPassRowsThatWait(t *testing.T) {
	t.Parallel()
	orderings(t, func(t *testing.T, ordering Ordering) {
		db := testdb.New(t)
		w := newTestWorker(t, db, Config{Workers: 1, Ordering: ordering})
		insertOne(t, db, "orders")
		setNextAttempt(t, db, `now() + interval '1 hour', last_error = 'no' WHERE seq = 1`)
		if ordering == PerKey {
			insertOne(t, db, "orders")
			insertOne(t, db, "orders")
		}
		insertRows(t, db, 100)
		require.Len(t, claimAndSettle(t, w), 100)
		var last int64
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT 100 + count(*) FROM `+db.Schema.Outbox()).Scan(&last))
		requireMark(t, w, last)

		setNextAttempt(t, db, `now() WHERE seq = 1`)
		require.Equal(t, []int64{1}, claimAndSettle(t, w))
		if ordering == PerKey {
			insertOne(t, db, "orders")
			require.Equal(t, []int64{2, 3, last + 1}, claimAndSettle(t, w), "what comes later is not parked where all of the unit goes")
		}
		insertOne(t, db, "orders")
		require.Len(t, claimAndSettle(t, w), 1)
		requireMark(t, w, lastSeq(t, db))
	})
}

func setNextAttempt(t *testing.T, db *testdb.DB, to string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = `+to)
	require.NoError(t, err)
}

func lastSeq(t *testing.T, db *testdb.DB) (last int64) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(),
		`SELECT last_value FROM pg_sequences WHERE schemaname = $1 AND sequencename = 'outbox_seq_seq'`, db.Schema.Schema).Scan(&last))
	return last
}

// What a claim learned before the marks were lowered does not raise them after.
func TestMarksIgnoreWhatIsOutOfDate(t *testing.T) {
	t.Parallel()
	m := &marks{}
	from := func() int64 { return m.view(territory{lanes: []int64{0}, total: 1}).from }
	from()
	m.horizon.safe = 100
	found := finding{lanes: []int64{0}}
	m.learn(m.view(territory{lanes: []int64{0}, total: 1}), found)
	require.Equal(t, int64(100), from())

	old := m.view(territory{lanes: []int64{0}, total: 1})
	m.leaveOut(nil, true)
	m.learn(old, found)
	require.Zero(t, from())

	m.learn(m.view(territory{lanes: []int64{0}, total: 1}), found)
	require.Equal(t, int64(100), from())
	old = m.view(territory{lanes: []int64{0}, total: 1})
	m.giveBack(0, 50)
	m.learn(old, found)
	require.Equal(t, int64(49), from())

	// The horizon of a claim is the one from before it began.
	old = m.view(territory{lanes: []int64{0}, total: 1})
	m.horizon.safe = 200
	m.learn(old, found)
	require.Equal(t, int64(100), from())

	old = m.view(territory{lanes: []int64{0}, total: 1})
	m.forget()
	m.learn(old, found)
	require.Zero(t, from())
	m.learn(m.view(territory{lanes: []int64{0}, total: 1}), found)
	require.Zero(t, from())
}

// The horizon passes a seq once those who were writing when it was seen have ended.
func TestHorizon(t *testing.T) {
	t.Parallel()
	h := horizon{newest: 10}
	h.saw(10, []string{"3/1", "4/1"})
	require.Zero(t, h.safe)
	h.saw(20, []string{"4/1", "5/1"})
	require.Zero(t, h.safe, "4/1 may still bring a lower one")
	h.saw(30, []string{"4/2", "5/1"})
	require.Equal(t, int64(10), h.safe)
	h.saw(40, nil)
	require.Equal(t, int64(30), h.safe)
	h.saw(40, nil)
	require.Equal(t, int64(40), h.safe)
}

// After a TRUNCATE, a failover or a restore, seqs begin anew, and connections that were
// idle meanwhile do not notice. Nothing below the old marks is passed by.
func TestMarksHoldForOneHistory(t *testing.T) {
	t.Parallel()
	orderings(t, func(t *testing.T, ordering Ordering) {
		db := testdb.New(t)
		insertRows(t, db, 50)
		w := newTestWorker(t, db, Config{Workers: 1, Ordering: ordering})
		require.Len(t, claimAndSettle(t, w), 50)
		requireMark(t, w, 50)
		_, err := db.ExecContext(t.Context(), `TRUNCATE `+db.Schema.Outbox()+` RESTART IDENTITY`)
		require.NoError(t, err)
		insertRows(t, db, 60)
		claimed := claimAndSettle(t, w)
		require.Len(t, claimed, 60)
		require.Equal(t, int64(1), claimed[0])
	})
}

// Two units of one hash: a row of the one that is not due, and whose destination is away,
// holds back nothing of the other.
func TestUnitsOfOneHashWhereOneIsAway(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	insertKeyed := func(destination, key string) {
		_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			VALUES ('x', $1, $2, 'x')`, destination, key)
		require.NoError(t, err)
	}
	insertKeyed("gone", "k39705")
	insertKeyed("up", "k3382")
	var hashes int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(DISTINCT unit_hash) FROM `+db.Schema.Outbox()).Scan(&hashes))
	require.Equal(t, 1, hashes)
	_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = now() + interval '1 hour' WHERE seq = 1`)
	require.NoError(t, err)
	w.claimer.marks.leaveOut([]string{"gone"}, false)
	require.Equal(t, []int64{2}, claimAndSettle(t, w))
}

// Neither waits for what waits, or is blocked, in the other: a row that is parked behind one of
// another unit could overtake one of its own that is not.
func TestUnitsOfOneHashDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{Workers: 1})
	for _, unit := range [][2]string{{"gone", "k39705"}, {"up", "k3382"}, {"gone", "k39705"}, {"up", "k3382"}} {
		_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			VALUES ('x', $1, $2, 'x')`, unit[0], unit[1])
		require.NoError(t, err)
	}
	setNextAttempt(t, db, `now() + interval '1 hour' WHERE seq = 2`)
	require.Equal(t, []int64{1, 3}, claimAndSettle(t, w))
	requireParked(t, db, 1)

	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.DeadLetters()+` (seq, id, destination, partition_key, payload, metadata,
		created_at, attempts, error, blocks) VALUES (1, 'x', 'gone', 'k39705', 'x', '{}', now(), 1, 'no', true)`)
	require.NoError(t, err)
	setNextAttempt(t, db, `now() WHERE seq = 2`)
	require.Equal(t, []int64{2, 4}, claimAndSettle(t, w))
}

// A patrol finds what came to be below the marks, here by an operator's hand, and has
// nothing else read again.
func TestPatrolFindsWhatIsBelowTheMarks(t *testing.T) {
	t.Parallel()
	orderings(t, func(t *testing.T, ordering Ordering) {
		db := testdb.New(t)
		insertRows(t, db, 3)
		w := newTestWorker(t, db, Config{Workers: 1, Settlement: MarkPublished, Ordering: ordering})
		require.Len(t, claimAndSettle(t, w), 3)
		requireMark(t, w, 3)
		patrol := newPatrol(w)
		require.NoError(t, patrol.look(t.Context()))
		require.Equal(t, int64(3), lowestMark(w))

		_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET published_at = NULL WHERE seq = 2`)
		require.NoError(t, err)
		require.Empty(t, claimAndSettle(t, w))
		require.NoError(t, patrol.look(t.Context()))
		require.Equal(t, int64(1), lowestMark(w))
		if ordering == PerKey {
			highest, _, _ := w.claimer.marks.highest()
			require.Equal(t, int64(3), highest, "the other lanes stay where they are")
		}
		require.Equal(t, []int64{2}, claimAndSettle(t, w))
	})
}

// A sequence that was set back, or rows that were brought in with higher seqs than it has.
// One patrol is enough: afterwards the marks pass nothing that is still to come.
func TestPatrolDoubtsTheHorizon(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	restart := `ALTER TABLE ` + db.Schema.Outbox() + ` ALTER COLUMN seq RESTART WITH `
	_, err := db.ExecContext(t.Context(), restart+`1000`)
	require.NoError(t, err)
	insertRows(t, db, 3)
	w := newTestWorker(t, db, Config{Workers: 1, Ordering: None})
	require.Len(t, claimAndSettle(t, w), 3)
	requireMark(t, w, 1002)

	_, err = db.ExecContext(t.Context(), restart+`1`)
	require.NoError(t, err)
	insertOne(t, db, "orders")
	require.Empty(t, claimAndSettle(t, w), "it is below the mark")
	require.NoError(t, newPatrol(w).look(t.Context()))
	require.Equal(t, []int64{1}, claimAndSettle(t, w))
	requireMark(t, w, 1)
	insertOne(t, db, "orders")
	require.Equal(t, []int64{2}, claimAndSettle(t, w))
}

func insertOne(t *testing.T, db *testdb.DB, destination string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		VALUES ('one', $1, 'one', 'x')`, destination)
	require.NoError(t, err)
}

package forwarder

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

func TestHotUnits(t *testing.T) {
	t.Parallel()
	rowsOf := func(counts ...int) (rows []row) {
		for unit, n := range counts {
			rows = append(rows, slices.Repeat([]row{{unitHash: int64(unit)}}, n)...)
		}
		return rows
	}
	many := slices.Repeat([]int{1}, 400)
	for name, test := range map[string]struct {
		rows  []row
		lanes int
		stays bool
		hot   []int64
	}{
		"one among many":                      {rows: rowsOf(append(many, 50)...), lanes: 64, hot: []int64{400}},
		"two among many":                      {rows: rowsOf(append(many, 50, 16)...), lanes: 64, hot: []int64{400, 401}},
		"few rows":                            {rows: rowsOf(append(many, hotRows-1)...), lanes: 64},
		"all have as many":                    {rows: rowsOf(50, 50, 50, 50), lanes: 64},
		"one alone":                           {rows: rowsOf(500), lanes: 64},
		"one alone that was hot among others": {rows: rowsOf(500), lanes: 64, stays: true, hot: []int64{0}},
		"few rows of one that was":            {rows: rowsOf(hotRows - 1), lanes: 64, stays: true},
		"a single lane":                       {rows: rowsOf(append(many, 50)...), lanes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ElementsMatch(t, test.hot, hotIn(claim{rows: test.rows, total: test.lanes}, test.stays))
		})
	}
}

func TestHotLanesAreThoseOfTheLatestClaims(t *testing.T) {
	t.Parallel()
	h := newHotLanes()
	requireHot := func(lanes ...int64) {
		t.Helper()
		hot, units := h.are()
		require.ElementsMatch(t, lanes, hot)
		require.Len(t, units, len(lanes))
	}
	h.learn(claim{lanes: []int64{0, 1, 2}, total: 16}, []int64{-14})
	requireHot(2)
	require.True(t, h.await(t.Context()))
	h.learn(claim{lanes: []int64{3, 4}, total: 16}, nil)
	requireHot(2)
	h.learn(claim{lanes: []int64{3, 4}, total: 16}, []int64{3})
	requireHot(2, 3)
	h.learn(claim{lanes: []int64{4}, total: 16}, []int64{4})
	requireHot(2, 3) // one worker is to cope with them
	h.learn(claim{lanes: []int64{2}, total: 16}, nil)
	requireHot(3)
	h.cool()
	requireHot()
}

// Who tends the hot lanes takes nothing else, a few rows of the hot unit at a time, and in between
// what is beside it; the others leave these lanes alone.
func TestHotLanesHaveAWorkerOfTheirOwn(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 2000) // of 2000 units, some of them in the hot lane
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		SELECT 'hot-' || n, 'orders', 'hot', 'x' FROM generate_series(1, 200) AS n`)
	require.NoError(t, err)
	ordinary, tending := newTestWorker(t, db, Config{Workers: 1}), newTestWorker(t, db, Config{Workers: 1})
	hot := newHotLanes()
	ordinary.hot, tending.hot, tending.tendsHot = hot, hot, true
	var unit int64
	require.NoError(t, db.QueryRowContext(t.Context(),
		`SELECT unit_hash FROM `+db.Schema.Outbox()+` WHERE id = 'hot-1'`).Scan(&unit))
	hot.learn(claim{total: 64}, []int64{unit})

	claimed := func(w *worker) (hot, besides int, taken claim) {
		tx := begin(t, w)
		taken, err := w.claim(t.Context(), tx)
		require.NoError(t, err)
		for _, r := range taken.rows {
			if r.unitHash == unit {
				hot++
			} else {
				besides++
			}
		}
		require.NoError(t, tx.Rollback())
		return hot, besides, taken
	}
	lane := unit & 63
	n, others, taken := claimed(ordinary)
	require.NotContains(t, taken.lanes, lane)
	require.Len(t, taken.lanes, 63)
	require.Zero(t, n)
	require.Positive(t, others)

	n, others, taken = claimed(tending)
	require.Equal(t, []int64{lane}, taken.lanes)
	require.Zero(t, n)
	require.Positive(t, others, "beside the hot unit, behind which these rows would wait")
	require.True(t, taken.partial)

	n, others, taken = claimed(tending)
	require.Equal(t, []int64{lane}, taken.lanes)
	require.Equal(t, hotBatch, n+others)
	require.False(t, taken.partial)

	// With nothing beside it, the hot unit need not wait.
	_, err = db.ExecContext(t.Context(), fmt.Sprintf(`DELETE FROM %s WHERE unit_hash <> %d`, db.Schema.Outbox(), unit))
	require.NoError(t, err)
	for range 3 {
		n, others, taken = claimed(tending)
		require.Equal(t, hotBatch, n)
		require.Zero(t, others)
		require.False(t, taken.partial)
	}
}

func TestHotLanesCoolWhereNothingIsInThem(t *testing.T) {
	t.Parallel()
	w := newTestWorker(t, testdb.New(t), Config{})
	w.hot, w.tendsHot = newHotLanes(), true
	w.hot.learn(claim{total: 64}, []int64{7})
	w.noteClaim(outcome{barred: true})
	require.True(t, w.hot.areThere(), "others hold them")
	w.noteClaim(outcome{claimed: 1})
	require.True(t, w.hot.areThere())
	w.noteClaim(outcome{})
	require.False(t, w.hot.areThere())
}

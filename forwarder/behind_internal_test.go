package forwarder

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A claim that does not look at what waits puts rows behind it aside, too. If it only left
// them out, the marks would pass them, and their successors overtake them.
func TestClaimThatLeavesOutWhatWaits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, id := range []string{"first", "second", "third"} {
		_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload) VALUES ($1, 'orders', 'a', 'x')`, id)
		require.NoError(t, err)
	}
	run(t, db, `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = now() + interval '1 hour', attempts = 1, last_error = 'x' WHERE seq = 1`)
	insertRows(t, db, 2)
	w := newTestWorker(t, db, Config{Workers: 1})
	tx := begin(t, w)
	taken, err := w.claimer.claim(t.Context(), tx, request{waiting: false})
	require.NoError(t, err)
	require.Equal(t, []int64{4, 5}, seqs(taken))
	require.Equal(t, 2, taken.parked)
}

// A row that is too large for what is left of a batch is not passed by the marks.
func TestClaimRemembersARowThatIsTooLarge(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 1)
	run(t, db, `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = now() - interval '1 hour', attempts = 1, last_error = 'x'`)
	large := strings.Repeat("x", 2000)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES ('large', 'orders', $1)`, large)
	require.NoError(t, err)
	w := newTestWorker(t, db, Config{Workers: 1, BatchBytes: 1000})
	w.claimer.marks.view(territory{lanes: []int64{0}, total: 64})
	w.claimer.marks.horizon.safe, w.claimer.marks.horizon.newest = 2, 2
	require.Equal(t, []int64{1}, claimAndSettle(t, w))
	require.LessOrEqual(t, lowestMark(w), int64(1))
	require.Eventually(t, func() bool { return len(claimAndSettle(t, w)) == 1 }, 30*time.Second, time.Millisecond)
	require.Empty(t, claimAndSettle(t, w))
}

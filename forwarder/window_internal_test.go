package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// No statement looks at more than a window of seqs, and gaps that are larger, as an outbox has
// that is years old, are skipped in one step. Marks pass nothing that was not looked at.
func TestWindows(t *testing.T) {
	t.Parallel()
	orderings(t, func(t *testing.T, ordering Ordering) {
		db := testdb.New(t)
		insertAt := func(seq int64, destination string) {
			_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (seq, id, destination, payload)
				OVERRIDING SYSTEM VALUE VALUES ($1::bigint, $1::bigint::text, $2, 'x')`, seq, destination)
			require.NoError(t, err)
		}
		const far = 3_000_000_000_000
		insertAt(far, "away")
		insertAt(far+window/2, "orders")
		insertAt(far+window, "orders")
		insertAt(far+5*window, "orders")
		w := newTestWorker(t, db, Config{Workers: 1, Ordering: ordering, Settlement: MarkPublished})
		w.claimer.marks.leaveOut([]string{"away"}, false)
		require.Equal(t, []int64{far + window/2}, claimAndSettle(t, w))
		require.Equal(t, []int64{far + window}, claimAndSettle(t, w))
		require.Equal(t, []int64{far + 5*window}, claimAndSettle(t, w))
		requireMark(t, w, far+5*window)

		patrol := newPatrol(w)
		_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET published_at = NULL WHERE seq = $1`, int64(far+window))
		require.NoError(t, err)
		require.Empty(t, claimAndSettle(t, w))
		require.NoError(t, patrol.look(t.Context()))
		require.Equal(t, []int64{far + window}, claimAndSettle(t, w))
	})
}

package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A batch without gaps is settled by its range; in one with gaps, others' rows stay.
func TestSettleLeavesWhatIsBetween(t *testing.T) {
	t.Parallel()
	for _, settlement := range []Settlement{Delete, MarkPublished} {
		t.Run(string(settlement), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			insertRows(t, db, 10)
			w := newTestWorker(t, db, Config{Settlement: settlement})
			for _, batch := range [][]int64{{1, 3}, {5, 4, 6}, {8}, {10, 7}} {
				tx := begin(t, w)
				require.NoError(t, w.settler.settle(t.Context(), tx, batch))
				require.NoError(t, tx.Commit())
			}
			left, err := numbers(t.Context(), begin(t, w), `SELECT seq FROM `+db.Schema.Outbox()+` WHERE published_at IS NULL ORDER BY seq`)
			require.NoError(t, err)
			require.Equal(t, []int64{2, 9}, left)
			for _, gone := range [][]int64{{3}, {1, 2}, {1, 9}} {
				require.ErrorIs(t, w.settler.settle(t.Context(), begin(t, w), gone), errRowsGone)
			}
		})
	}
}

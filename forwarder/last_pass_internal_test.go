package forwarder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Lanes of a claim that was given up become free a moment after its worker has ended:
// the last pass waits for them.
func TestLastPassWaitsForLanes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 3)
	w := newTestWorker(t, db, Config{Workers: 1})
	holder := begin(t, w)
	_, err := w.claimer.occupy(t.Context(), holder, request{lane: anyLane})
	require.NoError(t, err)
	released := make(chan error, 1)
	time.AfterFunc(5*lanesPoll, func() { released <- holder.Rollback() })
	w.lastPass(t.Context())
	require.NoError(t, <-released)
	var left int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()).Scan(&left))
	require.Zero(t, left)
}

package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A destination is away, the marks pass its rows, and then its broker goes away too: the
// row that is tried is still the first of its unit.
func TestTryIsOfTheFirstRowThatWaits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertOne(t, db, "gone")
	w := newTestWorker(t, db, Config{Workers: 1})
	w.away.destinationGone("broker", "gone", errNotSent)
	requireMark(t, w, 1)
	insertOne(t, db, "gone")
	w.away.brokerGone("broker", []string{"gone"}, false, errNotSent)

	prober := newProber(w)
	known := w.away.brokers["broker"]
	rows, found, err := prober.claimHead(t.Context(), begin(t, w), known.attempt())
	require.NoError(t, err)
	require.True(t, found.ok)
	require.Equal(t, []int64{1}, seqs(claim{rows: rows}))
}

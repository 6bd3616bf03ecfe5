package forwarder

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// newTestLookout has found nothing for long, and looks in its sleep hardly ever.
func newTestLookout(t *testing.T, db *testdb.DB) *lookout {
	t.Helper()
	l := newTestWorker(t, db, Config{PollInterval: time.Hour}).lookout
	l.sleeper = newTestSleeper(t, db)
	l.workedAt, l.lookedAt = time.Now().Add(-time.Minute), time.Now()
	return l
}

// What was committed just before it lay down, nobody wakes it for.
func TestWhoLiesDownLooksOnceMore(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 1)
	l := newTestLookout(t, db)
	require.True(t, l.sleeps(t.Context()))
	_, found := l.sleep(t.Context())
	require.True(t, found)
	require.False(t, l.sleeper.asleep)
}

// The one on duty dies; until the next one has seen that, nobody is woken.
func TestWhoTakesOverLooks(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first, second := newTestLookout(t, db), newTestLookout(t, db)
	require.True(t, first.sleeps(t.Context()))
	require.True(t, second.sleeps(t.Context()))
	second.lookOnce = false
	require.NoError(t, drop(first.sleeper.duty))
	first.sleeper.duty = nil
	insertRows(t, db, 1)
	require.Eventually(t, func() bool { // its session ends a moment later
		_, found := second.turnOver(t.Context())
		return found
	}, 30*time.Second, time.Millisecond)
	require.NotNil(t, second.sleeper.duty)
}

// What one worker has taken, no other looks for; all the rest, others find, whichever rows are the
// later ones.
func TestLookoutFindsWhatOthersHaveNot(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertRows(t, db, 100)
	w := newTestWorker(t, db, Config{Workers: 2}) // a claim takes half of the lanes
	l := w.lookout
	taken, err := w.claimer.claim(t.Context(), begin(t, w), request{lane: anyLane})
	require.NoError(t, err)
	require.NotEmpty(t, taken.rows)
	taken.rows[len(taken.rows)-1].seq = 1000
	l.took(w, taken)
	lane, found := l.search(t.Context())
	require.True(t, found)
	require.False(t, slices.Contains(taken.lanes, int64(lane&(len(l.marks.lanes)-1))))

	other := newTestWorker(t, db, Config{Workers: 1})
	rest, err := other.claimer.claim(t.Context(), begin(t, other), request{lane: anyLane})
	require.NoError(t, err)
	require.Len(t, append(taken.rows, rest.rows...), 100)
	l.took(other, rest)
	_, found = l.search(t.Context())
	require.False(t, found)
	l.landed(other)
	_, found = l.search(t.Context())
	require.True(t, found)
}

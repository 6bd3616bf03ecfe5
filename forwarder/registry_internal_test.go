package forwarder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A turn is given to one of those that ask.
func TestRegistryGivesATurnToOne(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := newTestWorker(t, db, Config{}).registry
	e := entry{kindDestination, "orders"}
	first, err := r.take(t.Context(), e, errNotSent, time.Hour)
	require.NoError(t, err)
	require.True(t, first.ours)
	second, err := r.take(t.Context(), e, errNotSent, time.Hour)
	require.NoError(t, err)
	require.False(t, second.ours)
	require.InDelta(t, time.Hour, second.wait, float64(time.Minute))
}

// What nobody has tried for long is forgotten: a destination that is away again counts from now.
// Its messages would be moved to the dead letters at once otherwise.
func TestRegistryForgetsWhatNobodyTries(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	w := newTestWorker(t, db, Config{})
	e := entry{kindDestination, "orders"}
	takeAfter := func(idle string) turn {
		_, err := w.registry.take(t.Context(), e, errNotSent, 0)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), `UPDATE `+db.Schema.Absences()+` SET since = since - interval '1 day',
			tried_at = tried_at - $1::interval, next_try_at = next_try_at - $1::interval`, idle)
		require.NoError(t, err)
		taken, err := w.registry.take(t.Context(), e, errNotSent, 0)
		require.NoError(t, err)
		require.True(t, taken.ours)
		return taken
	}
	require.Less(t, takeAfter(`10 minutes`).away, time.Hour)
	require.Greater(t, takeAfter(`1 minute`).away, time.Hour)

	count := func() (rows int) {
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Absences()).Scan(&rows))
		return rows
	}
	patrol := newPatrol(w)
	require.NoError(t, patrol.dropStale(t.Context()))
	require.Equal(t, 1, count())
	_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Absences()+` SET tried_at = now() - interval '10 minutes',
		next_try_at = now() - interval '10 minutes'`)
	require.NoError(t, err)
	require.NoError(t, patrol.dropStale(t.Context()))
	require.Zero(t, count())
}

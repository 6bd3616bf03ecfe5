package forwarder

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

func newTestSleeper(t *testing.T, db *testdb.DB) *sleeper {
	t.Helper()
	cfg := Config{Schema: db.Schema, ListenDSN: db.DSN}
	cfg.setDefaults()
	s, err := newSleeper(cfg, newListener(cfg, db.DB, watermill.NopLogger{}))
	require.NoError(t, err)
	s.open()
	s.ears.hears.Store(true)
	t.Cleanup(func() { require.NoError(t, s.close(context.WithoutCancel(t.Context()))) })
	return s
}

func requireLiesDown(t *testing.T, s *sleeper, lies, onDuty bool) {
	t.Helper()
	got, err := s.lieDown(t.Context())
	require.NoError(t, err)
	require.Equal(t, lies, got)
	require.Equal(t, lies, s.asleep)
	require.Equal(t, onDuty, s.duty != nil)
}

func TestOneSleeperIsOnDuty(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	first, second := newTestSleeper(t, db), newTestSleeper(t, db)

	requireLiesDown(t, first, true, true)
	requireLiesDown(t, second, true, false)
	require.NoError(t, first.getUp(t.Context(), false))
	same, err := second.stillSleeps(t.Context())
	require.NoError(t, err)
	require.False(t, same, "nobody was on duty for a while")
	require.True(t, second.asleep)
	require.NotNil(t, second.duty)
	requireLiesDown(t, first, true, false)
}

func TestSleeperDoesNotLieDownBesideWriters(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	s := newTestSleeper(t, db)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES ('a', 'orders', 'x')`)
	require.NoError(t, err)
	requireLiesDown(t, s, false, false)
	require.NoError(t, tx.Rollback())
	requireLiesDown(t, s, true, true)
}

func TestSleeperThatHearsNothingStaysAwake(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	s := newTestSleeper(t, db)
	s.ears.hears.Store(false)
	requireLiesDown(t, s, false, false)
	s.ears.hears.Store(true)
	requireLiesDown(t, s, true, true)
	s.ears.hears.Store(false)
	sleeps, err := s.stillSleeps(t.Context())
	require.NoError(t, err)
	require.False(t, sleeps)
	require.Nil(t, s.duty)
}

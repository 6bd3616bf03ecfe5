package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

func TestSnapshotSeesWhatHasCommitted(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	var id int64
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT pg_current_xact_id()::text`).Scan(&id))
	for _, driver := range []string{"postgres", "pgx"} {
		var s snapshot
		require.NoError(t, testdb.Open(t, driver, db.DSN).QueryRowContext(t.Context(), `SELECT pg_current_snapshot()::text`).Scan(&s))
		require.False(t, s.sees(uint32(id)))
		require.False(t, s.sees(s.xmax))
		require.True(t, s.sees(uint32(id)-1000))
	}
	require.NoError(t, tx.Commit())
	var s snapshot
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT pg_current_snapshot()::text`).Scan(&s))
	require.True(t, s.sees(uint32(id)))
}

func TestSnapshotOfManyTransactions(t *testing.T) {
	t.Parallel()
	const round = 1 << 32
	var s snapshot
	require.NoError(t, s.Scan("4294967290:4294967300:4294967290,4294967295,4294967297")) // ids have gone round
	for id, want := range map[uint64]bool{
		4294967289: true, 4294967290: false, 4294967291: true, 4294967295: false,
		round: true, round + 1: false, round + 3: true, round + 4: false, round + 1000: false,
	} {
		require.Equal(t, want, s.sees(uint32(id)), id)
	}
	for _, wrong := range []any{"", "1:2", "a:b:c", "1:2:x", 7, nil} {
		require.ErrorIs(t, new(snapshot).Scan(wrong), errSnapshot)
	}
}

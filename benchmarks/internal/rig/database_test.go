package rig_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
)

// What others write on the same server does not count.
func TestDatabase_Written(t *testing.T) {
	t.Parallel()
	servers := rig.FromEnvironment()
	database, err := servers.NewDatabase(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, database.Close(context.WithoutCancel(t.Context()))) })
	ours, err := database.NewOutbox(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ours.Close(context.WithoutCancel(t.Context()))) })
	others, err := servers.NewOutbox(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, others.Close(context.WithoutCancel(t.Context()))) })
	require.NoError(t, database.Settle(t.Context()))

	written := func(write func()) float64 {
		begin, err := database.Usage(t.Context())
		require.NoError(t, err)
		write()
		end, err := database.Usage(t.Context())
		require.NoError(t, err)
		bytes, known, err := database.Written(t.Context(), begin.Position, end.Position)
		require.NoError(t, err)
		require.True(t, known, "pg_walinspect is there")
		return bytes
	}
	load := rig.Load{Rows: 100, Destination: "orders", PayloadBytes: 100}
	require.Zero(t, written(func() {
		_, err := others.Fill(t.Context(), load)
		require.NoError(t, err)
	}))
	require.Zero(t, written(func() {
		_, err := ours.Number(t.Context(), `SELECT count(*) FROM `+ours.Schema.Outbox())
		require.NoError(t, err)
	}))
	require.Greater(t, written(func() {
		_, err := ours.Fill(t.Context(), load)
		require.NoError(t, err)
	}), 100.0*100)
}

func TestOpenCounted(t *testing.T) {
	t.Parallel()
	var statements atomic.Int64
	db, err := rig.OpenCounted(rig.FromEnvironment().DSN, &statements)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), `SELECT $1::integer`, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, statements.Load())
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var one int
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT 1`).Scan(&one))
	require.NoError(t, tx.Commit())
	require.EqualValues(t, 4, statements.Load(), "BEGIN, SELECT and COMMIT as well")
}

package forwarder

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// After a failover the pool's idle connections may lead to the old primary, which answers and
// takes no writes. None of them is used again.
func TestIdleConnectionsAreDropped(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.DB = testdb.Open(t, driver, db.DSN)
			db.SetMaxIdleConns(10)
			w := newTestWorker(t, db, Config{})
			before := map[int]bool{}
			for _, pid := range backends(t, db, 4) {
				before[pid] = true
			}
			require.Equal(t, 4, db.Stats().Idle)
			w.dropConnections(t.Context())
			require.Zero(t, db.Stats().Idle)
			for _, pid := range backends(t, db, 4) {
				require.NotContains(t, before, pid)
			}
		})
	}
}

// backends uses n connections at once and returns whom they lead to.
func backends(t *testing.T, db *testdb.DB, n int) []int {
	t.Helper()
	pids := make([]int, n)
	for i := range pids {
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		require.NoError(t, conn.QueryRowContext(context.WithoutCancel(t.Context()), `SELECT pg_backend_pid()`).Scan(&pids[i]))
	}
	return pids
}

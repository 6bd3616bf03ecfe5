package pgbouncertest_test

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// startTraffic lets another client use the same server connections until the test ends:
// each of its statements replaces the unnamed statement of the connection it gets.
func (d database) startTraffic(t *testing.T) {
	t.Helper()
	const binaryParameters = 1 // one round trip for each statement, so that nothing disturbs it
	db := d.open(t, modes[binaryParameters])
	var (
		clients sync.WaitGroup
		stopped atomic.Bool // no statement is cancelled
	)
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		stopped.Store(true)
		clients.Wait()
	})
	statements := []struct {
		text      string
		arguments []any
	}{
		{`SELECT 'theirs'::text, $1::text`, []any{"1"}},
		{`SELECT 'theirs'::text, $1::text, $2::text`, []any{"1", "2"}},
		{`SELECT 'theirs'::text, $1::text, $2::text, $3::text`, []any{"1", "2", "3"}},
	}
	clients.Go(func() {
		for i := 0; !stopped.Load(); i++ {
			s := statements[i%len(statements)]
			if _, err := db.ExecContext(ctx, s.text, s.arguments...); err != nil {
				t.Errorf("traffic: %v", err)
				return
			}
		}
	})
}

// The conditions of all other tests: clients share few server connections, and a
// transaction keeps its own.
func TestClientsShareServerConnections(t *testing.T) {
	t.Parallel()
	db := newHostile(t)
	const clients = 3 * poolSize
	held := make([]*sql.Tx, 0, poolSize)
	servers := map[int]bool{}
	pools := make([]*sql.DB, clients)
	for i := range pools {
		pools[i] = db.openOne(t, modes[0])
	}
	for _, pool := range pools[:poolSize] {
		tx, err := pool.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback() })
		held = append(held, tx)
		servers[backend(t, tx)] = true
	}
	require.Len(t, servers, poolSize)
	for _, tx := range held {
		require.True(t, servers[backend(t, tx)])
		var path string
		require.NoError(t, tx.QueryRowContext(t.Context(), `SHOW search_path`).Scan(&path))
		require.Equal(t, `hostile, public`, path, "what the address says is ignored")
	}
	server := backend(t, held[0])
	require.NoError(t, held[0].Rollback())
	for _, pool := range pools {
		if pool.Stats().InUse == 0 {
			require.Equal(t, server, backend(t, pool), "the one that is free")
		}
	}
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func backend(t *testing.T, from querier) (pid int) {
	t.Helper()
	require.NoError(t, from.QueryRowContext(t.Context(), `SELECT pg_catalog.pg_backend_pid()`).Scan(&pid))
	return pid
}

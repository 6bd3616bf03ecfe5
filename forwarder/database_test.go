package forwarder_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// The session that holds a claim ends between publish and settle: what was published
// is sent again, in order, and nothing is lost.
func TestLostSessionSendsAgain(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			admin := db.DB
			db.DB = testdb.Open(t, driver, db.DSN)
			var (
				r         recorder
				cut       atomic.Int64
				record    = r.publisher()
				publisher = publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
					results := record(ctx, msgs)
					if cut.Add(1) > 3 {
						return results
					}
					var ended int
					err := admin.QueryRowContext(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
						WHERE state = 'idle in transaction' AND position($1 IN query) > 0`, db.Schema.Outbox()).Scan(&ended)
					if err != nil || ended == 0 {
						t.Errorf("no session was ended: %d, %v", ended, err)
					}
					return results
				})
			)
			insert(t, db, "orders", "a", ids("a", 5)...)
			start(t, db, publisher, fast(forwarder.Config{Workers: 1, BatchSize: 2}))
			requireDrained(t, db)
			require.Equal(t, []string{"a-1", "a-2", "a-1", "a-2", "a-1", "a-2", "a-1", "a-2", "a-3", "a-4", "a-5"}, r.unit("orders", "a"))
		})
	}
}

package forwarder_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// The rows of a unit go out one after another. Once it shows that one has very many, those of all
// other lanes do not wait for it, however long it takes; and what is beside it, nobody forgets.
func TestHotKeyHoldsNoOtherUp(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const keys, hotRows = 2000, 1000
	const unaware = 3 // batches that may have been asked for before it showed
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		SELECT CASE WHEN n % 3 = 0 THEN 'hot-' || n / 3 ELSE 'other-' || n END, 'orders',
			CASE WHEN n % 3 = 0 THEN 'hot' ELSE 'key-' || n END, 'x'
		FROM generate_series(1, $1) AS n ORDER BY n`, keys+hotRows)
	require.NoError(t, err)
	var elsewhere int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()+` AS o
		WHERE (o.unit_hash & 63) <> (SELECT h.unit_hash & 63 FROM `+db.Schema.Outbox()+` AS h WHERE h.id = 'hot-1')`).Scan(&elsewhere))
	require.Greater(t, elsewhere, keys*9/10)

	var (
		r         recorder
		mu        sync.Mutex
		withHot   int
		others    int
		othersOut = make(chan struct{})
	)
	isHot := func(msg forwarder.Outgoing) bool { return strings.HasPrefix(msg.Message.UUID, "hot") }
	pub := publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		mu.Lock()
		waits := false
		if slices.ContainsFunc(msgs, isHot) {
			withHot++
			waits = withHot > unaware
		}
		mu.Unlock()
		if waits {
			select {
			case <-othersOut:
			case <-ctx.Done():
				return slices.Repeat([]error{forwarder.Unavailable(ctx.Err())}, len(msgs))
			}
		}
		results := r.publisher()(ctx, msgs)
		mu.Lock()
		defer mu.Unlock()
		before := others
		for _, msg := range msgs {
			if !isHot(msg) {
				others++
			}
		}
		if before < elsewhere && others >= elsewhere {
			close(othersOut)
		}
		return results
	})
	_, stop := start(t, db, pub, fast(forwarder.Config{BatchSize: 200, PublishTimeout: patience}))
	requireDrained(t, db)
	require.NoError(t, stop())
	require.Equal(t, ids("hot", hotRows), r.unit("orders", "hot"))
	require.Len(t, r.confirmed(), keys+hotRows)
}

package forwarder_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

// refusals are those of a broker that takes some messages late, and some never.
type refusals struct {
	mu    sync.Mutex
	count map[string]int
}

func (r *refusals) fail(msg forwarder.Outgoing) error {
	id := msg.Message.UUID
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count[id]++
	switch {
	case strings.HasSuffix(id, "-never"):
		return forwarder.Refused(fmt.Errorf("%s is never taken", id))
	case strings.HasSuffix(id, "-late") && r.count[id] <= 5:
		return forwarder.Refused(fmt.Errorf("%s is taken late", id))
	}
	return nil
}

// Several operators replay and discard without a pause while replicas run that block units:
// what is delivered is delivered once, in order, and nothing is missing but what was
// discarded.
func TestReplayOfBlockedUnitsBesideForwarders(t *testing.T) {
	t.Parallel()
	const keys, perKey = 15, 20
	pq := setupAdmin(t, "postgres")
	pgx, err := forwarder.NewAdmin(hostilePool(t, pq.db, "pgx"), pq.db.Schema)
	require.NoError(t, err)
	broker := refusals{count: map[string]int{}}
	r := recorder{fail: broker.fail}
	cfg := fast(forwarder.Config{Workers: 2, BatchSize: 10, MaxAttempts: 2, OnDeadLetter: forwarder.Block})
	for range 2 {
		start(t, pq.db, r.publisher(), cfg)
	}
	want := map[string][]string{}
	var never []string
	for n := range perKey {
		for key := range keys {
			id := fmt.Sprintf("%d-%d", key, n)
			switch (n + key) % 7 {
			case 2:
				id += "-late"
			case 5:
				id += "-never"
				never = append(never, id)
			}
			name := fmt.Sprint("key-", key)
			insert(t, pq.db, "orders", name, id)
			if !strings.HasSuffix(id, "-never") {
				want[name] = append(want[name], id)
			}
		}
	}
	var discarded, replayed int64
	eventually(t, func() bool {
		var operators sync.WaitGroup
		var counts [4]int64
		var errs [4]error
		late := forwarder.Filter{ErrorGroup: "forwarder: message refused: <id> is taken late"}
		for i, admin := range []*forwarder.Admin{pq.admin, pgx, pq.admin, pgx} {
			operators.Go(func() {
				if i < 2 {
					counts[i], errs[i] = admin.Replay(t.Context(), late, forwarder.BulkOptions{})
				} else {
					counts[i], errs[i] = admin.Discard(t.Context(), forwarder.Filter{EventIDs: never}, forwarder.BulkOptions{})
				}
			})
		}
		operators.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		replayed += counts[0] + counts[1]
		discarded += counts[2] + counts[3]
		return len(pq.outbox(t)) == 0 && len(pq.dead(t)) == 0
	})
	require.EqualValues(t, len(never), discarded)
	require.Positive(t, replayed)
	for key, ids := range want {
		require.Equal(t, ids, r.unit("orders", key), key)
	}
}

// Units that go on meanwhile: what is replayed comes at some later time, once, and the
// others keep their order.
func TestReplayToTheEndBesideForwarders(t *testing.T) {
	t.Parallel()
	const keys, perKey = 15, 20
	b := setupAdmin(t, "pgx")
	broker := refusals{count: map[string]int{}}
	r := recorder{fail: broker.fail}
	for range 2 {
		start(t, b.db, r.publisher(), fast(forwarder.Config{Workers: 2, BatchSize: 10, MaxAttempts: 2}))
	}
	others := make([][]string, keys)
	for n := range perKey {
		for key := range keys {
			id := fmt.Sprintf("%d-%d", key, n)
			if (n+key)%4 == 2 {
				id += "-late"
			} else {
				others[key] = append(others[key], id)
			}
			insert(t, b.db, "orders", fmt.Sprint("key-", key), id)
		}
	}
	eventually(t, func() bool {
		b.replay(t, everything)
		return len(b.outbox(t)) == 0 && len(b.dead(t)) == 0
	})
	for key := range keys {
		ids := r.unit("orders", fmt.Sprint("key-", key))
		require.Len(t, ids, perKey, "%v", ids)
		ids = slices.DeleteFunc(ids, func(id string) bool { return strings.HasSuffix(id, "-late") })
		require.Equal(t, others[key], ids)
	}
}

// A unit that stands still goes on in order as soon as its dead letter is replayed, or
// discarded, wherever the marks of the forwarder are.
func TestBlockedUnitGoesOn(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		broker := refusals{count: map[string]int{}}
		r := recorder{fail: broker.fail}
		start(t, b.db, r.publisher(), fast(forwarder.Config{MaxAttempts: 5, OnDeadLetter: forwarder.Block}))
		insert(t, b.db, "orders", "a", "1-late", "2", "3")
		insert(t, b.db, "orders", "b", "4-never", "5", "6")
		eventually(t, func() bool { return len(b.dead(t)) == 2 })
		insert(t, b.db, "orders", "c", ids("c", 300)...)
		insert(t, b.db, "orders", "a", "7")
		eventually(t, func() bool { return len(r.unit("orders", "c")) == 300 })
		require.Empty(t, r.unit("orders", "a"))
		require.Empty(t, r.unit("orders", "b"))
		stats, err := b.admin.Stats(t.Context())
		require.NoError(t, err)
		require.Len(t, stats.Blocked, 2)

		require.EqualValues(t, 1, b.replay(t, forwarder.Filter{EventIDs: []string{"1-late"}}))
		eventually(t, func() bool { return len(r.unit("orders", "a")) == 4 })
		require.Equal(t, []string{"1-late", "2", "3", "7"}, r.unit("orders", "a"))
		require.Empty(t, r.unit("orders", "b"))
		require.EqualValues(t, 1, b.discard(t, everything))
		requireDrained(t, b.db)
		require.Equal(t, []string{"5", "6"}, r.unit("orders", "b"))
	})
}

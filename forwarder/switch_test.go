package forwarder_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// What waited for its turn waits for none where there is no order any more.
func TestSwitchFromPerKeyToNone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var mended atomic.Bool
	r := recorder{fail: func(msg forwarder.Outgoing) error {
		if msg.Message.UUID == "a-1" && !mended.Load() {
			return forwarder.RouteUnavailable(errTest)
		}
		return nil
	}}
	insert(t, db, "orders", "a", ids("a", 5)...)
	_, stop := start(t, db, r.publisher(), fast(forwarder.Config{}))
	requireOutbox(t, db, `next_attempt_at = 'infinity'`, "a-2", "a-3", "a-4", "a-5")
	require.NoError(t, stop())

	start(t, db, r.publisher(), fast(forwarder.Config{Ordering: forwarder.None}))
	requireOutbox(t, db, `published_at IS NULL`, "a-1")
	require.ElementsMatch(t, []string{"a-2", "a-3", "a-4", "a-5"}, r.confirmed())
	mended.Store(true)
	requireDrained(t, db)
	require.Len(t, r.confirmed(), 5)
}

// What is left of a unit is sent in order, wherever it has come to while there was none.
func TestSwitchFromNoneToPerKey(t *testing.T) {
	t.Parallel()
	const keys, rows = 5, 600
	db := testdb.New(t)
	var n atomic.Int64
	before := recorder{fail: func(forwarder.Outgoing) error {
		if n.Add(1)%3 > 0 {
			return forwarder.Refused(errTest)
		}
		return nil
	}}
	insertMany(t, db, rows, keys)
	cfg := fast(forwarder.Config{Ordering: forwarder.None, BatchSize: 20, MaxAttempts: 1000})
	_, stop := start(t, db, before.publisher(), cfg)
	eventually(t, func() bool { return len(idsInOutbox(t, db, `attempts > 0`)) > 50 })
	require.NoError(t, stop())
	left := map[string][]string{}
	for key := range keys {
		name := fmt.Sprintf("key-%d", key)
		left[name] = idsInOutbox(t, db, `partition_key = '`+name+`'`)
		require.NotEmpty(t, left[name])
	}

	var after recorder
	cfg.Ordering = forwarder.PerKey
	start(t, db, after.publisher(), cfg)
	requireDrained(t, db)
	for key, ids := range left {
		require.Equal(t, ids, after.unit("orders", key))
	}
	require.Len(t, append(before.confirmed(), after.confirmed()...), rows)
}

// A policy holds for what dies under it: what is blocked waits for an operator all the same.
func TestSwitchFromBlockToContinue(t *testing.T) {
	t.Parallel()
	for name, unblock := range map[string]func(t *testing.T, db *testdb.DB, admin *forwarder.Admin){
		"replay": func(t *testing.T, _ *testdb.DB, admin *forwarder.Admin) {
			t.Helper()
			_, err := admin.Replay(t.Context(), forwarder.Filter{All: true}, forwarder.BulkOptions{})
			require.NoError(t, err)
		},
		"let go by hand": func(t *testing.T, db *testdb.DB, _ *forwarder.Admin) {
			t.Helper()
			execute(t, db, `UPDATE `+db.Schema.DeadLetters()+` SET blocks = false`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			admin, err := forwarder.NewAdmin(db.DB, db.Schema)
			require.NoError(t, err)
			var mended atomic.Bool
			r := recorder{fail: func(msg forwarder.Outgoing) error {
				if !mended.Load() && slices.Contains([]string{"a-2", "b-1"}, msg.Message.UUID) {
					return forwarder.Permanent(errTest)
				}
				return nil
			}}
			insert(t, db, "orders", "a", ids("a", 4)...)
			_, stop := start(t, db, r.publisher(), fast(forwarder.Config{OnDeadLetter: forwarder.Block}))
			requireOutbox(t, db, `next_attempt_at = 'infinity'`, "a-3", "a-4")
			require.NoError(t, stop())

			start(t, db, r.publisher(), fast(forwarder.Config{OnDeadLetter: forwarder.Continue}))
			insert(t, db, "orders", "a", "a-5")
			insert(t, db, "orders", "b", ids("b", 3)...)
			requireOutbox(t, db, `true`, "a-3", "a-4", "a-5")
			require.Equal(t, []string{"b-2", "b-3"}, r.unit("orders", "b"))
			require.Equal(t, []string{"a-1"}, r.unit("orders", "a"))
			require.Equal(t, []string{"a-2"}, deadLetters(t, db, `blocks`))

			mended.Store(true)
			unblock(t, db, admin)
			requireDrained(t, db)
			if name == "replay" {
				require.Equal(t, ids("a", 5), r.unit("orders", "a"))
			} else {
				require.Equal(t, []string{"a-1", "a-3", "a-4", "a-5"}, r.unit("orders", "a"))
			}
		})
	}
}

// Units that have gone on are not stopped behind them.
func TestSwitchFromContinueToBlock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := recorder{fail: refusing(forwarder.Permanent, "a-1", "b-1")}
	insert(t, db, "orders", "a", ids("a", 3)...)
	_, stop := start(t, db, r.publisher(), fast(forwarder.Config{OnDeadLetter: forwarder.Continue}))
	requireDrained(t, db)
	require.NoError(t, stop())

	start(t, db, r.publisher(), fast(forwarder.Config{OnDeadLetter: forwarder.Block}))
	insert(t, db, "orders", "b", ids("b", 3)...)
	insert(t, db, "orders", "a", "a-4")
	requireOutbox(t, db, `true`, "b-2", "b-3")
	require.Equal(t, []string{"a-2", "a-3", "a-4"}, r.unit("orders", "a"))
	require.Equal(t, []string{"b-1"}, deadLetters(t, db, `blocks`))
}

// A dead letter that blocks its unit holds nothing back where there is no order; it does again
// where there is.
func TestSwitchFromBlockToNoneAndBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := recorder{fail: refusing(forwarder.Permanent, "a-1")}
	insert(t, db, "orders", "a", ids("a", 3)...)
	block := fast(forwarder.Config{OnDeadLetter: forwarder.Block})
	_, stop := start(t, db, r.publisher(), block)
	requireOutbox(t, db, `next_attempt_at = 'infinity'`, "a-2", "a-3")
	require.NoError(t, stop())

	_, stop = start(t, db, r.publisher(), fast(forwarder.Config{Ordering: forwarder.None}))
	insert(t, db, "orders", "a", "a-4")
	requireDrained(t, db)
	require.NoError(t, stop())
	require.ElementsMatch(t, []string{"a-2", "a-3", "a-4"}, r.confirmed())

	start(t, db, r.publisher(), block)
	insert(t, db, "orders", "a", "a-5")
	insert(t, db, "orders", "b", "b-1")
	requireOutbox(t, db, `true`, "a-5")
	admin, err := forwarder.NewAdmin(db.DB, db.Schema)
	require.NoError(t, err)
	_, err = admin.Discard(t.Context(), forwarder.Filter{All: true}, forwarder.BulkOptions{})
	require.NoError(t, err)
	requireDrained(t, db)
	require.Len(t, r.confirmed(), 5)
}

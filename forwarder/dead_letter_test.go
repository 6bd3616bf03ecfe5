package forwarder_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// refusing refuses the messages with these ids.
func refusing(mark func(error) error, ids ...string) func(forwarder.Outgoing) error {
	return func(msg forwarder.Outgoing) error {
		if slices.Contains(ids, msg.Message.UUID) {
			return mark(errTest)
		}
		return nil
	}
}

// A message that is refused again and again is a dead letter after MaxAttempts, with all that
// it had. Its unit waits for that, and then goes on without it, in order.
func TestMessageIsADeadLetterAfterMaxAttempts(t *testing.T) {
	t.Parallel()
	for _, settlement := range []forwarder.Settlement{forwarder.Delete, forwarder.MarkPublished} {
		t.Run(string(settlement), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var tries atomic.Int64
			r := recorder{}
			r.fail = func(msg forwarder.Outgoing) error {
				if msg.Message.UUID == "a-2" {
					tries.Add(1)
					return forwarder.Refused(errTest)
				}
				return nil
			}
			insert(t, db, "orders", "a", ids("a", 5)...)
			insert(t, db, "orders", "b", ids("b", 5)...)
			cfg := fast(forwarder.Config{MaxAttempts: 4, Settlement: settlement, BatchSize: 3})
			start(t, db, r.publisher(), cfg)
			requireDrained(t, db)
			require.Equal(t, []string{"a-2"}, deadLetters(t, db, `attempts = 4 AND seq = 2 AND destination = 'orders' AND partition_key = 'a'
				AND payload = 'x' AND metadata = '{}' AND error LIKE '%test: no' AND error_group LIKE '%test: no'
				AND NOT blocks AND created_at < dead_at`))
			require.EqualValues(t, 4, tries.Load())
			require.Equal(t, []string{"a-1", "a-3", "a-4", "a-5"}, r.unit("orders", "a"))
			require.Equal(t, ids("b", 5), r.unit("orders", "b"))
			require.Empty(t, idsInOutbox(t, db, `id = 'a-2'`))
		})
	}
}

func TestPermanentRefusalIsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	require.NoError(t, forwarder.Permanent(nil))
	require.ErrorIs(t, forwarder.Permanent(errTest), forwarder.ErrRefused)
	db := testdb.New(t)
	r := recorder{fail: refusing(forwarder.Permanent, "a-1", "a-3")}
	insert(t, db, "orders", "a", ids("a", 4)...)
	start(t, db, r.publisher(), fast(forwarder.Config{}))
	requireDrained(t, db)
	require.Equal(t, []string{"a-2", "a-4"}, r.unit("orders", "a"))
	require.Equal(t, []string{"a-1", "a-3"}, deadLetters(t, db, `attempts = 1`))
}

// With Block a unit stands still behind its dead letter, for rows that come later too, while
// others go on.
func TestBlockHoldsTheUnitBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := recorder{fail: refusing(forwarder.Refused, "a-2")}
	insert(t, db, "orders", "a", ids("a", 3)...)
	start(t, db, r.publisher(), fast(forwarder.Config{MaxAttempts: 2, OnDeadLetter: forwarder.Block}))
	eventually(t, func() bool { return len(deadLetters(t, db, `blocks`)) == 1 })
	insert(t, db, "orders", "a", "a-4")
	insert(t, db, "orders", "b", ids("b", 3)...)
	requireOutbox(t, db, `next_attempt_at = 'infinity'`, "a-3", "a-4")
	eventually(t, func() bool { return len(r.unit("orders", "b")) == 3 })
	require.Equal(t, []string{"a-1"}, r.unit("orders", "a"))
}

// Where a dead letter cannot be written, what the broker confirmed is settled all the same.
func TestWhatIsConfirmedIsSettledWhereNothingCanBeBuried(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	execute(t, db, `ALTER TABLE `+db.Schema.DeadLetters()+` ADD CONSTRAINT full_up CHECK (id <> 'a-1')`)
	r := recorder{fail: refusing(forwarder.Permanent, "a-1")}
	insert(t, db, "orders", "a", ids("a", 2)...)
	insert(t, db, "orders", "b", ids("b", 3)...)
	start(t, db, r.publisher(), fast(forwarder.Config{Workers: 1}))
	eventually(t, func() bool { return len(idsInOutbox(t, db, `attempts > 2 AND last_error LIKE '%full_up%'`)) == 1 })
	require.Equal(t, ids("b", 3), r.confirmed())
	execute(t, db, `ALTER TABLE `+db.Schema.DeadLetters()+` DROP CONSTRAINT full_up`)
	requireDrained(t, db)
	require.Equal(t, []string{"a-1"}, deadLetters(t, db, `true`))
	require.Equal(t, []string{"a-2"}, r.unit("orders", "a"))
}

// Dead letters of one seq may meet: a table that was emptied begins anew.
func TestDeadLettersOfOneSeq(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	r := recorder{fail: func(forwarder.Outgoing) error { return forwarder.Permanent(errTest) }}
	start(t, db, r.publisher(), fast(forwarder.Config{}))
	for n := 1; n <= 2; n++ {
		insert(t, db, "orders", "a", fmt.Sprintf("a-%d", n))
		eventually(t, func() bool { return len(deadLetters(t, db, `seq = 1`)) == n })
		execute(t, db, `TRUNCATE `+db.Schema.Outbox()+` RESTART IDENTITY`)
	}
}

// Replicas agree on when a row is tried again: three of them spend no more than one.
func TestReplicasDoNotMultiplyTheCadence(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var tries atomic.Int64
	r := recorder{fail: func(msg forwarder.Outgoing) error {
		if msg.Message.UUID == "a-1" {
			tries.Add(1)
			return forwarder.Refused(errTest)
		}
		return nil
	}}
	cfg := fast(forwarder.Config{MaxAttempts: 5})
	for range 3 {
		start(t, db, r.publisher(), cfg)
	}
	insert(t, db, "orders", "a", "a-1")
	requireDrained(t, db)
	require.Equal(t, []string{"a-1"}, deadLetters(t, db, `attempts = 5`))
	require.EqualValues(t, 5, tries.Load())
}

// killedBy fails as a whole where a batch holds a message.
func killedBy(id string, publish publisherFunc) publisherFunc {
	return func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		isKiller := func(msg forwarder.Outgoing) bool { return msg.Message.UUID == id }
		if !slices.ContainsFunc(msgs, isKiller) {
			return publish(ctx, msgs)
		}
		results := make([]error, len(msgs))
		for i := range results {
			results[i] = forwarder.Unavailable(errTest)
		}
		return results
	}
}

// A message that a broker does not survive looks like an outage: the connection is gone, and
// so are the messages that were sent with it. It is found, and no other is held back by it.
func TestMessageThatKillsTheConnectionIsFound(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var r recorder
	publisher := killedBy("killer", r.publisher())
	insertMany(t, db, 200, 200)
	insert(t, db, "orders", "a", "killer", "a-1", "a-2")
	insertMany(t, db, 200, 200)
	start(t, db, publisher, fast(forwarder.Config{BatchSize: 64, MaxAttempts: 3}))
	eventually(t, func() bool { return len(r.confirmed()) >= 400 })
	for n := 0; len(deadLetters(t, db, `true`)) == 0; n++ { // without others, nothing tells it from an outage
		require.Less(t, n, 1000)
		id := fmt.Sprintf("later-%d", n)
		insert(t, db, "orders", "", id)
		eventually(t, func() bool { return slices.Contains(r.confirmed(), id) })
	}
	requireDrained(t, db)
	require.Equal(t, []string{"killer"}, deadLetters(t, db, `attempts = 3`))
	require.Equal(t, []string{"a-1", "a-2"}, r.unit("orders", "a"))
}

// So is one that a broker does not survive where there are several.
func TestMessageThatKillsTheConnectionIsFoundBehindRoutes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var a, b recorder
	routes := routesTo(t, map[string]message.Publisher{"a": killedBy("killer", a.publisher()), "b": b.publisher()},
		forwarder.Route{Destination: "a", Broker: "a"}, forwarder.Route{Destination: "b", Broker: "b"})
	insert(t, db, "a", "", ids("a", 20)...)
	insert(t, db, "a", "k", "killer", "k-1")
	insert(t, db, "a", "", ids("more", 20)...)
	insert(t, db, "b", "", ids("b", 20)...)
	start(t, db, routes, fast(forwarder.Config{BatchSize: 16, MaxAttempts: 3}))
	eventually(t, func() bool { return len(a.confirmed()) == 40 && len(b.confirmed()) == 20 })
	for n := 0; len(deadLetters(t, db, `true`)) == 0; n++ { // without others, nothing tells it from an outage
		require.Less(t, n, 1000)
		insert(t, db, "a", "", fmt.Sprintf("later-%d", n))
		eventually(t, func() bool { return len(a.confirmed()) >= 41+n })
	}
	requireDrained(t, db)
	require.Equal(t, []string{"killer"}, deadLetters(t, db, `attempts = 3`))
	require.Contains(t, a.confirmed(), "k-1")
}

// What a plain publisher cannot send, without saying why, is at fault where others pass in
// between, however seldom they come.
func TestPlainPublishersPoisonIsADeadLetterWhereOthersPass(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var tries atomic.Int64
	publisher := &plain{fail: func(id string) error {
		if id == "poison" {
			tries.Add(1)
			return errTest
		}
		return nil
	}}
	insert(t, db, "orders", "a", "poison", "a-1")
	start(t, db, publisher, fast(forwarder.Config{MaxAttempts: 3}))
	eventually(t, func() bool { return tries.Load() > 50 })
	require.Equal(t, []string{"poison", "a-1"}, idsInOutbox(t, db, `attempts = 0`), "nothing tells it from an outage")
	for n := 0; len(deadLetters(t, db, `true`)) == 0; n++ {
		require.Less(t, n, 1000)
		id := fmt.Sprintf("healthy-%d", n)
		insert(t, db, "orders", "", id)
		tried := tries.Load()
		eventually(t, func() bool {
			return slices.Contains(publisher.published(), id) && (tries.Load() > tried || len(deadLetters(t, db, `true`)) > 0)
		})
	}
	requireDrained(t, db)
	require.Equal(t, []string{"poison"}, deadLetters(t, db, `attempts = 3 AND error LIKE '%test: no'`))
	require.Contains(t, publisher.published(), "a-1")
}

// A broker that is away for long costs no message an attempt, however often it is tried, and
// with each row alone.
func TestOutageSpendsNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		tries atomic.Int64
		away  atomic.Bool
	)
	away.Store(true)
	r := recorder{fail: func(forwarder.Outgoing) error {
		if tries.Add(1); away.Load() {
			return forwarder.Unavailable(errTest)
		}
		return nil
	}}
	insert(t, db, "orders", "", ids("a", 20)...)
	start(t, db, r.publisher(), fast(forwarder.Config{MaxAttempts: 1}))
	eventually(t, func() bool { return tries.Load() > 200 })
	require.Len(t, idsInOutbox(t, db, `attempts = 0 AND next_attempt_at IS NULL`), 20)
	require.Equal(t, []string{"broker"}, absences(t, db))
	away.Store(false)
	requireDrained(t, db)
	require.Empty(t, deadLetters(t, db, `true`))
	eventually(t, func() bool { return len(absences(t, db)) == 0 })
}

// absences lists what the outbox says is away.
func absences(t *testing.T, db *testdb.DB) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT trim(kind || ' ' || name) FROM `+db.Schema.Absences()+` ORDER BY 1`)
	require.NoError(t, err)
	defer rows.Close()
	names := []string{}
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, rows.Err())
	return names
}

// A destination that is away for too long gives its messages to the dead letters, if that is
// asked for; others do not.
func TestDestinationThatIsAwayForTooLong(t *testing.T) {
	t.Parallel()
	for _, ordering := range []forwarder.Ordering{forwarder.PerKey, forwarder.None} {
		t.Run(string(ordering), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			r := recorder{fail: func(msg forwarder.Outgoing) error {
				if msg.Destination == "missing" {
					return forwarder.DestinationUnavailable(errTest)
				}
				return nil
			}}
			insert(t, db, "missing", "a", ids("m", 30)...)
			insert(t, db, "missing", "", ids("n", 30)...)
			insert(t, db, "orders", "a", ids("o", 30)...)
			cfg := fast(forwarder.Config{BatchSize: 7, Ordering: ordering, AfterUnavailable: 300 * time.Millisecond})
			start(t, db, r.publisher(), cfg)
			requireDrained(t, db)
			require.Len(t, r.confirmed(), 30)
			require.ElementsMatch(t, append(ids("m", 30), ids("n", 30)...), deadLetters(t, db,
				`attempts = 0 AND destination = 'missing' AND payload = 'x' AND error LIKE '%unavailable for too long%test: no'`))
		})
	}
}

// What is away is in the outbox's own table, for all replicas, and until it is back.
func TestAbsentDestinationIsToldAndTriedByOne(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		tries atomic.Int64
		away  atomic.Bool
	)
	away.Store(true)
	r := recorder{fail: func(forwarder.Outgoing) error {
		if tries.Add(1); away.Load() {
			return forwarder.DestinationUnavailable(errTest)
		}
		return nil
	}}
	insert(t, db, "missing", "a", ids("m", 3)...)
	cfg := fast(forwarder.Config{Workers: 1})
	cfg.RetryMax, cfg.RetryInitial = time.Hour, 100*time.Millisecond
	for range 3 {
		start(t, db, r.publisher(), cfg)
	}
	eventually(t, func() bool { return slices.Equal(absences(t, db), []string{"destination missing"}) })
	away.Store(false)
	requireDrained(t, db)
	eventually(t, func() bool { return len(absences(t, db)) == 0 })
	require.Equal(t, ids("m", 3), r.unit("missing", "a"))
}

// A message that nobody takes for now, while its destination takes others, waits with its unit
// and spends nothing, however often it is tried.
func TestMessageWithoutARouteWaitsWithItsUnit(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		tries atomic.Int64
		bound atomic.Bool
	)
	r := recorder{fail: func(msg forwarder.Outgoing) error {
		if msg.Message.UUID == "a-1" && !bound.Load() {
			tries.Add(1)
			return forwarder.RouteUnavailable(errTest)
		}
		return nil
	}}
	insert(t, db, "orders", "a", ids("a", 3)...)
	insert(t, db, "orders", "b", ids("b", 3)...)
	start(t, db, r.publisher(), fast(forwarder.Config{MaxAttempts: 1}))
	eventually(t, func() bool { return tries.Load() > 5 && len(r.unit("orders", "b")) == 3 })
	require.Equal(t, []string{"a-1"}, idsInOutbox(t, db, `attempts = 0 AND last_error LIKE '%no route%'`))
	require.Len(t, idsInOutbox(t, db, `partition_key = 'a'`), 3)
	require.Empty(t, absences(t, db))
	bound.Store(true)
	requireDrained(t, db)
	require.Equal(t, ids("a", 3), r.unit("orders", "a"))
	require.Empty(t, deadLetters(t, db, `true`))
}

package forwarder_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

func routesTo(t *testing.T, brokers map[string]message.Publisher, routes ...forwarder.Route) *forwarder.Routes {
	t.Helper()
	r, err := forwarder.NewRoutes(brokers, routes)
	require.NoError(t, err)
	return r
}

func TestRoutePatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"orders", []string{"orders"}, []string{"order", "orders2", "Orders", ""}},
		{"*", []string{"orders", "", "a.b/c"}, nil},
		{"orders.*", []string{"orders.", "orders.eu", "orders.eu.west"}, []string{"orders", "xorders.eu"}},
		{"*.eu", []string{".eu", "orders.eu", "eu.eu"}, []string{"eu", "orders.eu.west"}},
		{"a*b*c", []string{"abc", "aXbYc", "abbc", "abcbc"}, []string{"ab", "acb", "abcd"}},
		{"a*a", []string{"aa", "aba"}, []string{"a"}},
		{"*a*a*a*a*a*a*b", nil, []string{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}},
	} {
		r := routesTo(t, map[string]message.Publisher{"main": &plain{}}, forwarder.Route{Destination: c.pattern, Broker: "main"})
		for _, destination := range c.yes {
			broker, ok := r.Broker(destination)
			require.Truef(t, ok, "%q must match %q", c.pattern, destination)
			require.Equal(t, "main", broker)
		}
		for _, destination := range c.no {
			_, ok := r.Broker(destination)
			require.Falsef(t, ok, "%q must not match %q", c.pattern, destination)
		}
	}
}

func TestFirstRouteThatMatchesIsTaken(t *testing.T) {
	t.Parallel()
	r := routesTo(t, map[string]message.Publisher{"a": &plain{}, "b": &plain{}},
		forwarder.Route{Destination: "orders.eu", Broker: "a"},
		forwarder.Route{Destination: "orders.*", Broker: "b"},
		forwarder.Route{Destination: "*.eu", Broker: "a"})
	for destination, want := range map[string]string{"orders.eu": "a", "orders.us": "b", "payments.eu": "a"} {
		broker, ok := r.Broker(destination)
		require.True(t, ok)
		require.Equal(t, want, broker, destination)
	}
	require.NoError(t, r.Require("orders.eu", "payments.eu"))
	err := r.Require("orders.eu", "payments.us", "stock")
	require.ErrorIs(t, err, forwarder.ErrNoRoute)
	require.ErrorContains(t, err, `"payments.us"`)
	require.ErrorContains(t, err, `"stock"`)
	require.NotContains(t, err.Error(), `"orders.eu"`)
}

func TestRoutesThatCannotWork(t *testing.T) {
	t.Parallel()
	brokers := map[string]message.Publisher{"a": &plain{}, "b": &plain{}, "none": nil}
	_, err := forwarder.NewRoutes(brokers, []forwarder.Route{
		{Destination: "", Broker: "a"},
		{Destination: "orders", Broker: ""},
		{Destination: "orders.*", Broker: "a"},
		{Destination: "orders.eu", Broker: "a"},
		{Destination: "stock", Broker: "c"},
	})
	require.ErrorIs(t, err, forwarder.ErrInvalidRoutes)
	for _, want := range []string{
		`the route to broker "a" has no destination`,
		`the route from "orders" has no broker`,
		`the route from "orders.eu" is never used, "orders.*" before it matches all of it`,
		`the route from "stock" leads to "c", brokers are ["a" "b" "none"]`,
		`no route leads to broker "b"`,
		`the publisher of broker "none" is nil`,
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = forwarder.NewRoutes(nil, nil)
	require.ErrorContains(t, err, "there is no broker")
}

// Used as a plain publisher, Routes sends to the broker of the destination.
func TestRoutesPublish(t *testing.T) {
	t.Parallel()
	a, b := &plain{}, &plain{}
	r := routesTo(t, map[string]message.Publisher{"a": a, "b": b},
		forwarder.Route{Destination: "a", Broker: "a"}, forwarder.Route{Destination: "b", Broker: "b"})
	require.NoError(t, r.Publish("b", message.NewMessage("1", nil)))
	require.Empty(t, a.published())
	require.Equal(t, []string{"1"}, b.published())
	require.ErrorIs(t, r.Publish("c", message.NewMessage("2", nil)), forwarder.ErrNoRoute)
	require.NoError(t, r.Close())
}

// Messages without a route wait; those with one go on.
func TestDestinationWithoutRouteWaits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var r recorder
	insert(t, db, "unknown", "", ids("u", 30)...)
	insert(t, db, "orders", "a", ids("o", 30)...)
	start(t, db, routesTo(t, map[string]message.Publisher{"main": r.publisher()}, forwarder.Route{Destination: "orders", Broker: "main"}),
		fast(forwarder.Config{BatchSize: 10}))
	eventually(t, func() bool { return len(r.unit("orders", "a")) == 30 })
	requireOutbox(t, db, `attempts = 0 AND next_attempt_at IS NULL`, ids("u", 30)...)
}

// A broker that is away holds back its own destinations, also those that it did not know
// of at first, and nothing else; it spends no attempt. When it is back, all of it
// arrives in order.
func TestBrokerThatIsAwayHoldsBackItsOwnOnly(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"batch publisher": forwarder.Unavailable(errTest), "says nothing": errTest} {
		for _, ordering := range []forwarder.Ordering{forwarder.PerKey, forwarder.None} {
			t.Run(name+"/"+string(ordering), func(t *testing.T) {
				t.Parallel()
				db := testdb.New(t)
				var away atomic.Bool
				away.Store(true)
				down := recorder{fail: func(forwarder.Outgoing) error {
					if away.Load() {
						return failure
					}
					return nil
				}}
				var up recorder
				routes := routesTo(t, map[string]message.Publisher{"down": down.publisher(), "up": up.publisher()},
					forwarder.Route{Destination: "d*", Broker: "down"}, forwarder.Route{Destination: "*", Broker: "up"})
				insert(t, db, "d1", "a", ids("d1", 30)...)
				insert(t, db, "u1", "a", ids("u1", 30)...)
				start(t, db, routes, fast(forwarder.Config{Workers: 2, BatchSize: 10, Ordering: ordering}))
				eventually(t, func() bool { return len(up.unit("u1", "a")) == 30 })
				insert(t, db, "d2", "a", ids("d2", 30)...)
				insert(t, db, "u2", "a", ids("u2", 30)...)
				eventually(t, func() bool { return len(up.unit("u2", "a")) == 30 })
				require.Empty(t, down.confirmed())
				eventually(t, func() bool { return len(idsInOutbox(t, db, `true`)) == 60 })
				require.Len(t, idsInOutbox(t, db, `attempts = 0`), 60)

				away.Store(false)
				requireDrained(t, db)
				require.Len(t, down.confirmed(), 60, "nothing twice")
				if ordering == forwarder.PerKey {
					require.Equal(t, ids("d1", 30), down.unit("d1", "a"))
					require.Equal(t, ids("d2", 30), down.unit("d2", "a"))
					require.Equal(t, ids("u1", 30), up.unit("u1", "a"))
				}
			})
		}
	}
}

// A broker that does not answer at all costs the others one PublishTimeout, when it
// begins. After that it is tried beside them, and takes neither a worker nor a lane.
func TestBrokerThatHangsHoldsBackItsOwnOnly(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		up      recorder
		hanging = make(chan int, 100)
	)
	hangs := publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		hanging <- len(msgs)
		<-ctx.Done()
		results := make([]error, len(msgs))
		for i := range results {
			results[i] = forwarder.Unavailable(ctx.Err())
		}
		return results
	})
	routes := routesTo(t, map[string]message.Publisher{"hangs": hangs, "up": up.publisher()},
		forwarder.Route{Destination: "h", Broker: "hangs"}, forwarder.Route{Destination: "*", Broker: "up"})
	insert(t, db, "h", "", ids("h", 20)...)
	cfg := fast(forwarder.Config{Workers: 1, PublishTimeout: 400 * time.Millisecond})
	start(t, db, routes, cfg)
	require.Equal(t, 20, <-hanging, "the batch that meets it first")
	require.Equal(t, 1, <-hanging, "then one message at a time")

	// While that one hangs, the only worker forwards what goes elsewhere, in all lanes.
	insert(t, db, "u", "", ids("u", 200)...)
	eventually(t, func() bool { return len(up.confirmed()) == 200 })
	requireOutbox(t, db, `attempts = 0`, ids("h", 20)...)
}

// Order within a unit and completeness while brokers and destinations come and go, rows
// become visible in another order than that of their seq, and replicas share the work.
func TestOrderHoldsWhileBrokersComeAndGo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const keys, perKey = 10, 30
	var calls atomic.Int64
	flaky := func(every int64, failure error) func(forwarder.Outgoing) error {
		return func(forwarder.Outgoing) error {
			if n := calls.Add(1); n%every < every/4 {
				return failure
			}
			return nil
		}
	}
	var (
		a = recorder{fail: flaky(97, forwarder.Unavailable(errTest))}
		b = recorder{fail: flaky(61, forwarder.DestinationUnavailable(errTest))}
	)
	routes := routesTo(t, map[string]message.Publisher{"a": a.publisher(), "b": b.publisher()},
		forwarder.Route{Destination: "a*", Broker: "a"}, forwarder.Route{Destination: "b*", Broker: "b"})
	for range 2 {
		start(t, db, routes, fast(forwarder.Config{Workers: 2, BatchSize: 7}))
	}
	writeCrossing(t, db, []string{"a1", "b1", "a2", "b2"}, keys, perKey)
	requireDrained(t, db)
	for _, key := range ids("key", keys) {
		for _, destination := range []string{"a1", "a2"} {
			require.Equal(t, ids(destination+key, perKey), a.unit(destination, key))
		}
		for _, destination := range []string{"b1", "b2"} {
			require.Equal(t, ids(destination+key, perKey), b.unit(destination, key))
		}
	}
}

// One unit that fails as if its broker were away does not stand for the broker: rows of
// others are tried too.
func TestStuckUnitDoesNotStandForItsBroker(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"broker":      forwarder.Unavailable(errTest),
		"destination": forwarder.DestinationUnavailable(errTest),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var tries atomic.Int64
			r := recorder{fail: func(msg forwarder.Outgoing) error {
				if msg.PartitionKey == "stuck" {
					tries.Add(1)
					return failure
				}
				return nil
			}}
			insert(t, db, "orders", "stuck", ids("s", 3)...)
			start(t, db, routesTo(t, map[string]message.Publisher{"main": r.publisher()}, forwarder.Route{Destination: "*", Broker: "main"}),
				fast(forwarder.Config{}))
			eventually(t, func() bool { return tries.Load() > 3 })
			insert(t, db, "orders", "healthy", ids("h", 3)...)
			insert(t, db, "others", "healthy", ids("o", 3)...)
			eventually(t, func() bool { return len(r.confirmed()) == 6 })
			requireOutbox(t, db, `true`, ids("s", 3)...)
		})
	}
}

// A row that an operator puts aside does not keep its broker away.
func TestRowPutAsideDoesNotKeepItsBrokerAway(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{"parked": `next_attempt_at = 'infinity'`, "moved": `destination = 'nowhere'`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var (
				away  atomic.Bool
				tries atomic.Int64
			)
			away.Store(true)
			r := recorder{fail: func(forwarder.Outgoing) error {
				if tries.Add(1); away.Load() {
					return forwarder.Unavailable(errTest)
				}
				return nil
			}}
			insert(t, db, "orders", "", ids("o", 3)...)
			start(t, db, routesTo(t, map[string]message.Publisher{"main": r.publisher()}, forwarder.Route{Destination: "orders", Broker: "main"}),
				fast(forwarder.Config{}))
			eventually(t, func() bool { return tries.Load() > 5 })
			_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET `+change+` WHERE seq = 1`)
			require.NoError(t, err)
			away.Store(false)
			eventually(t, func() bool { return len(r.confirmed()) == 2 })
		})
	}
}

package forwarder_test

import (
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// In a rolling restart a destination moves from one broker to another while it is
// written to. Whatever the configuration of a replica, the unit's next message is sent
// only after the one before it was confirmed and settled: the order holds from the one
// broker to the other, and where replicas stop in an orderly way nothing is sent twice.
func TestRouteIsSwappedLive(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const keys, perKey = 6, 200
	var all recorder
	through := func(name string) (routes *forwarder.Routes, used *recorder) {
		used = &recorder{fail: func(msg forwarder.Outgoing) error {
			return all.send(t.Context(), []forwarder.Outgoing{msg})[0]
		}}
		return routesTo(t, map[string]message.Publisher{name: used.publisher()}, forwarder.Route{Destination: "*", Broker: name}), used
	}
	before, first := through("kafka")
	after, second := through("rabbit")
	cfg := fast(forwarder.Config{Workers: 2, BatchSize: 5})

	_, stopOne := start(t, db, before, cfg)
	_, stopTwo := start(t, db, before, cfg)
	var writers sync.WaitGroup
	writers.Go(func() { writeCrossing(t, db, []string{"orders"}, keys, perKey) })
	confirmed := func(n int) func() bool { return func() bool { return len(all.confirmed()) >= n } }
	eventually(t, confirmed(keys*perKey/4))
	require.NoError(t, stopOne())
	start(t, db, after, cfg)
	eventually(t, confirmed(keys*perKey/2))
	require.NoError(t, stopTwo())
	start(t, db, after, cfg)
	writers.Wait()
	requireDrained(t, db)

	for _, key := range ids("key", keys) {
		require.Equal(t, ids("orders"+key, perKey), all.unit("orders", key))
	}
	require.NotEmpty(t, first.confirmed())
	require.NotEmpty(t, second.confirmed())
}

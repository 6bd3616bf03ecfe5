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

// What the handlers wrote last for one broker does not wait for another one that does not
// answer.
func TestRouterPlugin_LastPassDoesNotWaitForAnotherBroker(t *testing.T) {
	t.Parallel()
	db, router := testdb.New(t), newRouter(t, patience)
	var (
		hanging atomic.Bool
		up      = recorder{fail: func(forwarder.Outgoing) error {
			if !hanging.Load() {
				return forwarder.Refused(errTest) // it waited
			}
			return nil
		}}
		tried = make(chan int, 100)
	)
	hangs := publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		hanging.Store(true)
		defer hanging.Store(false)
		tried <- len(msgs)
		<-ctx.Done()
		results := make([]error, len(msgs))
		for i := range results {
			results[i] = forwarder.Unavailable(ctx.Err())
		}
		return results
	})
	routes := routesTo(t, map[string]message.Publisher{"hangs": hangs, "up": up.publisher()},
		forwarder.Route{Destination: "h", Broker: "hangs"}, forwarder.Route{Destination: "*", Broker: "up"})
	cfg := asleep()
	cfg.Workers, cfg.PublishTimeout = 1, 6*time.Second
	cfg.RetryInitial, cfg.RetryMax = time.Millisecond, time.Millisecond
	insert(t, db, "h", "", ids("h", 2)...)
	_, _ = addForwarder(t, router, db, routes, cfg)
	running := runRouter(t, router)
	require.Equal(t, 2, <-tried, "the batch that meets it first")
	require.Equal(t, 1, <-tried, "a try beside the workers")

	insert(t, db, "u", "", "u-1")
	require.NoError(t, router.Close())
	running.await(t)
	require.Equal(t, []string{"u-1"}, up.confirmed())
	require.Equal(t, ids("h", 2), idsInOutbox(t, db, `attempts = 0`))
}

package forwarder_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// slowly confirms a batch as a whole, after a time for each of its messages, or none of it.
func slowly(each time.Duration, then publisherFunc, gaveUp *atomic.Int64) publisherFunc {
	return func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		select {
		case <-time.After(time.Duration(len(msgs)) * each):
			return then(ctx, msgs)
		case <-ctx.Done():
		}
		gaveUp.Add(1)
		results := make([]error, len(msgs))
		for i := range results {
			results[i] = forwarder.Unavailable(ctx.Err())
		}
		return results
	}
}

// A broker that cannot take a whole batch in time gets smaller ones.
func TestSlowBrokerGetsWhatItCanTake(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		r      recorder
		gaveUp atomic.Int64
	)
	insertMany(t, db, 150, 150)
	publisher := slowly(5*time.Millisecond, r.publisher(), &gaveUp)
	start(t, db, publisher, fast(forwarder.Config{Workers: 1, PublishTimeout: 200 * time.Millisecond}))
	requireDrained(t, db)
	require.Len(t, r.confirmed(), 150)
	require.Less(t, gaveUp.Load(), int64(6))
}

// One that cannot take a single message in time gets more of it, up to a bound. Whoever stops
// meanwhile does not wait for longer than PublishTimeout.
func TestVerySlowBrokerGetsMoreTime(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var (
		r      recorder
		gaveUp atomic.Int64
	)
	insertMany(t, db, 4, 4)
	publisher := slowly(300*time.Millisecond, r.publisher(), &gaveUp)
	start(t, db, publisher, fast(forwarder.Config{Workers: 1, PublishTimeout: 100 * time.Millisecond}))
	requireDrained(t, db)
	require.Len(t, r.confirmed(), 4)
}

func TestStopDoesNotWaitForAVerySlowBroker(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertMany(t, db, 1, 1)
	const timeout = time.Second
	patient, ended := make(chan struct{}, 1), make(chan time.Time, 1)
	publisher := publisherFunc(func(ctx context.Context, _ []forwarder.Outgoing) []error {
		deadline, ok := ctx.Deadline()
		if !ok || time.Until(deadline) < 3*timeout { // not yet
			<-ctx.Done()
			return []error{forwarder.Unavailable(ctx.Err())}
		}
		patient <- struct{}{}
		<-ctx.Done()
		ended <- deadline
		return []error{forwarder.Unavailable(ctx.Err())}
	})
	_, stop := start(t, db, publisher, fast(forwarder.Config{Workers: 1, PublishTimeout: timeout}))
	<-patient
	require.NoError(t, stop())
	require.True(t, time.Now().Before(<-ended), "it was given up before its own time had come")
}

// What a replica that stops had in hand is free for the others at once.
func TestAnotherReplicaGoesOnWhereOneStops(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertMany(t, db, 10, 10)
	publishing := make(chan struct{}, 1)
	hangs := publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
		publishing <- struct{}{}
		<-ctx.Done()
		results := make([]error, len(msgs))
		for i := range results {
			results[i] = forwarder.Unavailable(ctx.Err())
		}
		return results
	})
	_, stop := start(t, db, hangs, fast(forwarder.Config{Workers: 1, PublishTimeout: 200 * time.Millisecond}))
	<-publishing
	var r recorder
	other, _ := start(t, db, r.publisher(), fast(forwarder.Config{Workers: 1, PublishTimeout: time.Hour}))
	require.Empty(t, r.confirmed())
	require.NoError(t, stop())
	other.Wake()
	requireDrained(t, db)
	require.Len(t, r.confirmed(), 10)
}

package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
)

// A forwarder that ends of its own accord, here because there are no tables, is not
// started again for ever: it ends the run.
func TestForwarderThatFailsEndsTheRun(t *testing.T) {
	t.Parallel()
	s, err := servers.Open(t.Context(), servers.Kafka, "quickstart_test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })

	ctx, abort := context.WithCancelCause(t.Context())
	var parts tasks
	relay := &supervisor{addresses: s.Addresses, dieAfter: deaths(100)}
	parts.start(ctx, abort, relay.run)
	<-ctx.Done()
	require.NoError(t, parts.stop())
	require.ErrorIs(t, context.Cause(ctx), errEndedEarly)
	require.ErrorContains(t, context.Cause(ctx), "forwarder process: exit status 1")
	require.Zero(t, relay.deaths())
}

// A life that is asked to end before it has begun has ended as asked.
func TestSupervisorStopsBeforeAForwarderStarts(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, (&supervisor{}).live(ctx, 0))
}

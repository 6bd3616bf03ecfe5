package rig_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// What the sender believes does not count: the broker has lost one message and got another
// one twice.
func TestFarEnd_CountsWhatArrived(t *testing.T) {
	t.Parallel()
	servers := rig.FromEnvironment()
	for _, far := range []rig.FarEnd{servers.RabbitMQ(), servers.Kafka()} {
		t.Run(far.Name(), func(t *testing.T) {
			t.Parallel()
			destination, err := far.NewDestination(t.Context())
			require.NoError(t, err)
			ours, err := far.Publisher()
			require.NoError(t, err)
			watermills, err := far.Watermills(true)
			require.NoError(t, err)
			tally := compare.NewTally(rig.NewPrefix(), 6)

			var batch []forwarder.Outgoing
			for _, number := range []int{1, 2, 2} {
				id := tally.ID(number)
				batch = append(batch, forwarder.Outgoing{
					Destination: destination, PartitionKey: fmt.Sprint(len(batch)), Message: message.NewMessage(id, []byte("x")),
				})
			}
			for _, err := range ours.PublishBatch(t.Context(), batch) {
				require.NoError(t, err)
			}
			require.NoError(t, watermills.Publish(destination,
				message.NewMessage(tally.ID(3), []byte("x")), message.NewMessage(tally.ID(4), []byte("x"))))
			require.NoError(t, ours.Close())
			require.NoError(t, watermills.Close())

			require.NoError(t, far.Count(t.Context(), destination, tally))
			require.NoError(t, far.Remove(t.Context(), destination))
			var sample compare.Sample
			require.NoError(t, tally.Into(&sample))
			require.Equal(t, 2, sample.Lost, "5 and 6")
			require.Equal(t, 1, sample.Duplicates, "2")
		})
	}
}

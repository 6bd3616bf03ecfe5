package suite

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// swallowing confirms a message of each batch that it does not send.
type swallowing struct{ rig.Publisher }

func (s swallowing) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	return append(s.Publisher.PublishBatch(ctx, msgs[1:]), nil)
}

// The meter, which believes the sender, has seen everything; the far end has not.
func TestDrain_FindsWhatIsLostOnTheWay(t *testing.T) {
	t.Parallel()
	servers := rig.FromEnvironment()
	for _, far := range []rig.FarEnd{servers.RabbitMQ(), servers.Kafka()} {
		t.Run(far.Name(), func(t *testing.T) {
			t.Parallel()
			result := compare.Run(t.Context(), compare.Comparison{
				Rounds: 1,
				Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
					outbox, to, err := outboxAndTarget(ctx, servers, far, clean)
					if err != nil {
						return nil, err
					}
					to.pub = swallowing{Publisher: to.pub}
					d := drain{outbox: outbox, target: to, load: rig.Load{Rows: 1000, PayloadBytes: 10}}
					return []compare.Side{d.side("lossy", bareLoop(100))}, nil
				},
			}, func(compare.Event) {})
			require.Empty(t, result.Error)
			require.Equal(t, "lost 10 messages", result.Sides[0].Wrong)
		})
	}
}

package amqp_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
)

// A queue may stall while the broker is well, as a quorum queue does that has lost most
// of its nodes: only its own messages wait, whether its channel is open already or is
// to be opened, and the connection that serves the others stays.
func TestStalledQueueHoldsBackItselfOnly(t *testing.T) {
	t.Parallel()
	broker := testamqp.StartBroker(t)
	forEachQueueType(t, func(t *testing.T, arguments amqp091.Table) {
		stalled, well := testamqp.Name(t), testamqp.Name(t)
		lost := make(chan struct{}, 100)
		newPublisher := func() *amqp.Publisher {
			cfg := amqp.NewQueueConfig(broker.URI())
			cfg.AMQP.Queue.Arguments = arguments
			publisher, err := amqp.NewPublisher(cfg, &errorLogger{onError: func() { lost <- struct{}{} }})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, publisher.Close()) })
			return publisher
		}
		warm, cold := newPublisher(), newPublisher()
		for _, queue := range []string{stalled, well} {
			require.NoError(t, publish(t, warm, outgoing(queue, "a", "0", "x"))[0])
		}

		suspend(t, broker, stalled, "suspend")
		for name, publisher := range map[string]*amqp.Publisher{"warm": warm, "cold": cold} {
			for n := range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				results := publisher.PublishBatch(ctx, []forwarder.Outgoing{
					outgoing(stalled, "a", "1", "x"), outgoing(well, "a", fmt.Sprint(name, n), "x"), outgoing(stalled, "a", "2", "x"),
				})
				require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable)
				require.NoError(t, results[1])
				require.ErrorIs(t, results[2], forwarder.ErrKeyHeld)
			}
		}
		require.Empty(t, lost, "no connection is lost")

		suspend(t, broker, stalled, "resume")
		for _, publisher := range []*amqp.Publisher{warm, cold} {
			require.NoError(t, publish(t, publisher, outgoing(stalled, "a", "1", "x"))[0])
		}
	})
}

// suspend suspends or resumes the process of a queue.
func suspend(t *testing.T, broker *testamqp.Broker, queue, verb string) {
	t.Helper()
	broker.Control(t, "eval", fmt.Sprintf(`
		{ok, Queue} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
		Process = case amqqueue:get_pid(Queue) of {Name, _} -> whereis(Name); Pid -> Pid end,
		ok = sys:%s(Process).`, queue, verb))
}

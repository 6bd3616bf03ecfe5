//go:build !race

package conformance_test

import (
	"net/url"
	"testing"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testamqp"
)

// The suite restarts the broker twice while it publishes and consumes.
func TestRabbitMQRestarts(t *testing.T) {
	t.Parallel()
	uri := testamqp.StartBroker(t).URI()
	address, err := url.Parse(uri)
	require.NoError(t, err)
	features := tests.Features{
		Persistent: true,
		RestartServiceCommand: []string{
			"env", "-u", "AMQP_URI", "SERVICES_RABBITMQ_PORT=" + address.Port(), "sh", "-c",
			// Connections that come just then may have RabbitMQ fail to stop; it can be told again.
			"for attempt in 1 2 3; do ../services/rabbitmqctl.sh stop_app && ../services/rabbitmqctl.sh start_app && exit; done; exit 1",
		},
	}
	p := newPipeline(t, newQueues(t, uri), variant{write: publishTx})
	tests.TestReconnect(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, p.pubSub)
}

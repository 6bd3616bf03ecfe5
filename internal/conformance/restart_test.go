//go:build !race

package conformance_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testamqp"
)

// restartPatience is for three attempts on a busy machine.
const restartPatience = 2 * time.Minute

// The suite restarts the broker twice while it publishes and consumes.
func TestRabbitMQRestarts(t *testing.T) {
	t.Parallel()
	uri := testamqp.StartBroker(t).URI()
	address, err := url.Parse(uri)
	require.NoError(t, err)
	ended := filepath.Join(t.TempDir(), "restarts")
	features := tests.Features{
		Persistent: true,
		RestartServiceCommand: []string{
			"env", "-u", "AMQP_URI", "SERVICES_RABBITMQ_PORT=" + address.Port(), "ENDED=" + ended, "sh", "-c",
			// Connections that come just then may have RabbitMQ fail to stop; it can be told again.
			`trap 'echo ended >>"$ENDED"' EXIT; for attempt in 1 2 3; do ../services/rabbitmqctl.sh stop_app && ../services/rabbitmqctl.sh start_app && exit; done; exit 1`,
		},
	}
	p := newPipeline(t, newQueues(t, uri), variant{write: publishTx})
	tests.TestReconnect(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, p.pubSub)
	// The suite does not wait for the second restart, which would go on in a broker that is gone.
	require.Eventually(t, func() bool {
		content, err := os.ReadFile(ended)
		return err == nil && strings.Count(string(content), "ended") == 2
	}, restartPatience, 10*time.Millisecond)
}

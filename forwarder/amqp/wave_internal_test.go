package amqp

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testamqp"
)

// A wave that is given up at any moment: returns and confirmations go on coming in while
// its results are read, and a returned message never counts as confirmed.
func TestUnroutableIsNoSuccessInAWaveThatIsGivenUp(t *testing.T) {
	t.Parallel()
	cfg := NewQueueConfig(testamqp.URI())
	cfg.DeclareQueues = false
	conn, err := dial(t.Context(), cfg, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(conn.close)
	nowhere := testamqp.Name(t)
	givenUp := 0
	for range 150 {
		msgs := make([]addressed, maxUnconfirmed)
		for i := range msgs {
			publishing := amqp091.Publishing{MessageId: fmt.Sprint(i), DeliveryMode: amqp091.Persistent}
			msgs[i] = addressed{route{outlet{destination: nowhere}, nowhere}, publishing}
		}
		ch, err := openChannel(conn, outlet{destination: nowhere})
		require.NoError(t, err)
		w := newWave(ch, msgs)
		blocked := make(chan struct{})
		timer := time.AfterFunc(rand.N(40*time.Millisecond), func() { close(blocked) })
		for _, err := range w.run(t.Context(), blocked) {
			require.Error(t, err)
		}
		timer.Stop()
		if w.cause != nil {
			givenUp++
		}
		ch.close()
	}
	require.Positive(t, givenUp)
}

package testamqp_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/testamqp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testamqp.HangingUp(m)) }

func TestClosedSubscribersLeaveNothing(t *testing.T) {
	t.Parallel()
	for range 300 {
		subscriber, err := testamqp.NewSubscriber(wmamqp.NewDurableQueueConfig(testamqp.URI()), watermill.NopLogger{})
		require.NoError(t, err)
		require.NoError(t, subscriber.Close())
	}
}

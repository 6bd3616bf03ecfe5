package conformance_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/testamqp"
)

func TestMain(m *testing.M) {
	const suite = "github.com/ThreeDotsLabs/watermill/"
	goleak.VerifyTestMain(testamqp.HangingUp(m),
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		// The suite does not read to their ends the many subscribers that it makes one of, and
		// in TestReconnect does not end one channel.
		goleak.IgnoreAnyFunction(suite+"internal/subscriber.(*multiplier).Subscribe.func2"),
		goleak.IgnoreAnyFunction(suite+"internal/subscriber.(*multiplier).Subscribe.func3"),
		goleak.IgnoreTopFunction(suite+"pubsub/tests.TestReconnect.func2"),
	)
}

package ledger_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/ledger"
	"github.com/watermill-outbox/outbox/internal/testamqp"
)

func TestMain(m *testing.M) {
	ledger.RunForwarderIfAsked()
	goleak.VerifyTestMain(testamqp.HangingUp(m), goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

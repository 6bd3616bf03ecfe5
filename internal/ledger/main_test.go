package ledger_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

func TestMain(m *testing.M) {
	ledger.RunForwarderIfAsked()
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

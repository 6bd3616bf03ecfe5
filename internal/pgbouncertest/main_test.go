// Package pgbouncertest_test runs everything that speaks to Postgres through PgBouncer
// in transaction mode, with each driver and in each of its modes.
package pgbouncertest_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

const patience = time.Minute

func TestMain(m *testing.M) {
	ledger.RunForwarderIfAsked()
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

package chaos_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/embedded"
	"github.com/watermill-outbox/outbox/internal/ledger"
)

func TestMain(m *testing.M) {
	embedded.RunChildIfAsked()
	runKeeperIfAsked()
	runVictimIfAsked()
	ledger.RunForwarderIfAsked()
	goleak.VerifyTestMain(printsTable{m},
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		// toxiproxy leaves one behind where a connection ends while it is given a toxic.
		goleak.IgnoreTopFunction("github.com/Shopify/toxiproxy/v2/toxics.(*NoopToxic).Pipe"))
}

// printsTable prints the table of all runs after them.
type printsTable struct{ *testing.M }

func (p printsTable) Run() int {
	code := p.M.Run()
	if text := figures.String(); text != "" {
		fmt.Print(text)
	}
	return code
}

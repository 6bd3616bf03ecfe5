package suite_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/benchmarks/internal/suite"
)

// tiny is enough to see that everything runs, and too little to measure anything.
var tiny = suite.Scale{
	Rounds: 1, FewRounds: 1, Payloads: []int{256, 4096}, Rows: 5000, BrokerRows: 2000, SingleRows: 50, StockBacklog: 500, Waiting: 2000,
	Backlogs: []int{20_000}, Writing: 50 * time.Millisecond, Listening: 100 * time.Millisecond, Idle: 100 * time.Millisecond,
	Silence: 100 * time.Millisecond, SmallRows: 2000, LargeRows: 20,
}

// Every comparison runs, and gives each of its figures a value: names of sides and values
// are found, and no side but one loses anything.
func TestAll(t *testing.T) { //nolint:tparallel // one comparison after the other, as in a run
	t.Parallel()
	names, figures := map[string]bool{}, map[string]bool{}
	for _, c := range suite.All(rig.FromEnvironment(), tiny) {
		require.False(t, names[c.Name], "two comparisons are named %s", c.Name)
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			result := compare.Run(t.Context(), c, func(compare.Event) {})
			require.Empty(t, result.Error)
			for _, figure := range c.Figures {
				require.False(t, figures[figure.Name], "two figures are named %s", figure.Name)
				figures[figure.Name] = true
				evaluated := figure.Evaluate(result)
				if figure.Over == suite.Deduplicator && c.Name == "inbox-failing-handler" {
					require.Contains(t, evaluated.Wrong, "lost", "it marks a message as seen before it is handled")
					continue
				}
				require.Empty(t, evaluated.Wrong, figure.Name)
				require.NotNil(t, evaluated.Value, figure.Name)
			}
		})
	}
}

// TestMain lets this program be the process whose memory is measured.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == suite.DrainCommand {
		if err := suite.Drain(context.Background(), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// A meter of a metrics library that sarama brings has no end, nor has the repository of
	// Watermill's Deduplicator.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		goleak.IgnoreTopFunction(
			"github.com/ThreeDotsLabs/watermill/message/router/middleware.(*mapExpiringKeyRepository).cleanOutLoop"))
}

package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/ledger"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

func TestOneReplicaKeepsOrder(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		run(t, b, ledger.Config{Replicas: 1, Kills: 4, SelfKills: 1})
	})
}

func TestFourReplicasKeepOrder(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		run(t, b, ledger.Config{Replicas: 4, Kills: 8, SelfKills: 2})
	})
}

// Where seq and commit order cross, rows appear below those that are settled already.
func TestOneReplicaSkipsNoLateCommit(t *testing.T) {
	t.Parallel()
	report := run(t, ledger.NewKafka(t), ledger.Config{Replicas: 1, Kills: 4, SelfKills: 1, InsertDelay: 20 * time.Millisecond})
	require.Positive(t, report.Crossings)
}

func TestFourReplicasSkipNoLateCommit(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		report := run(t, b, ledger.Config{Replicas: 4, Kills: 8, SelfKills: 2, InsertDelay: 20 * time.Millisecond})
		require.Positive(t, report.Crossings)
	})
}

func TestWithoutOrder(t *testing.T) {
	t.Parallel()
	run(t, ledger.NewKafka(t), ledger.Config{
		Replicas: 2, Kills: 4, SelfKills: 1,
		Forwarder: ledger.ForwarderConfig{Ordering: forwarder.None},
	})
}

// Where nobody dies, replicas that race for the same lanes send nothing twice: no kill
// explains a single duplicate here.
func TestFourReplicasSendNothingTwiceUnlessKilled(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		run(t, b, ledger.Config{Replicas: 4})
	})
}

func TestFourReplicasMarkNothingTwiceUnlessKilled(t *testing.T) {
	t.Parallel()
	run(t, ledger.NewKafka(t), ledger.Config{Replicas: 4, Forwarder: ledger.ForwarderConfig{Settlement: forwarder.MarkPublished}})
}

func TestMarkPublished(t *testing.T) {
	t.Parallel()
	run(t, ledger.NewKafka(t), ledger.Config{
		Replicas: 2, Kills: 4, SelfKills: 1,
		Forwarder: ledger.ForwarderConfig{Settlement: forwarder.MarkPublished},
	})
}

// A destination moves from Kafka to RabbitMQ in a rolling restart, and the replicas that
// are replaced die hard. For a while one publishes to each: nothing is lost, no effect
// happens twice, and each broker gets its part of a unit in order.
func TestSwapLive(t *testing.T) {
	t.Parallel()
	const replicas = 2
	swap := ledger.NewSwap(t, replicas)
	run(t, swap, ledger.Config{Replicas: replicas, Kills: 4, SelfKills: 1})
	require.Positive(t, swap.FromKafka)
	require.Positive(t, swap.FromAMQP)
}

// A run that is given up says why, and leaves no process: those would hold the test's
// tables, and no goroutine, which TestMain would find.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		cfg := config(t, b, ledger.Config{Replicas: 2, Kills: 1000, SelfKills: 1})
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, enough)
		defer cancel()
		_, err := ledger.Run(ctx, cfg)
		require.ErrorIs(t, err, enough)
	})
}

type broker interface {
	ledger.Broker
	NewDestination(t *testing.T) string
}

func onEachBroker(t *testing.T, test func(t *testing.T, b broker)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) broker{
		"kafka": func(t *testing.T) broker { t.Helper(); return ledger.NewKafka(t) },
		"amqp":  func(t *testing.T) broker { t.Helper(); return ledger.NewAMQP(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func run(t *testing.T, b broker, cfg ledger.Config) ledger.Report {
	t.Helper()
	if cfg.DSN == "" {
		cfg = config(t, b, cfg)
	}
	report, err := ledger.Run(t.Context(), cfg)
	require.NoError(t, err)
	ledger.Require(t, report)
	return report
}

func config(t *testing.T, b broker, cfg ledger.Config) ledger.Config {
	t.Helper()
	db := testdb.New(t)
	cfg.DSN, cfg.Schema = db.DSN, db.Schema
	cfg.Broker = b
	if cfg.Forwarder.Slot == fromWAL {
		cfg.Forwarder.Slot = db.Slot(t)
	}
	for range 4 { // a queue has one consumer that takes one message at a time
		cfg.Destinations = append(cfg.Destinations, b.NewDestination(t))
	}
	return cfg
}

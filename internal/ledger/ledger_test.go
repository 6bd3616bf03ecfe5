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
	run(t, ledger.Config{Replicas: 1, Kills: 4, SelfKills: 1})
}

func TestFourReplicasKeepOrder(t *testing.T) {
	t.Parallel()
	run(t, ledger.Config{Replicas: 4, Kills: 8, SelfKills: 2})
}

// Where seq and commit order cross, rows appear below those that are settled already.
func TestOneReplicaSkipsNoLateCommit(t *testing.T) {
	t.Parallel()
	report := run(t, ledger.Config{Replicas: 1, Kills: 4, SelfKills: 1, InsertDelay: 20 * time.Millisecond})
	require.Positive(t, report.Crossings)
}

func TestFourReplicasSkipNoLateCommit(t *testing.T) {
	t.Parallel()
	report := run(t, ledger.Config{Replicas: 4, Kills: 8, SelfKills: 2, InsertDelay: 20 * time.Millisecond})
	require.Positive(t, report.Crossings)
}

func TestWithoutOrder(t *testing.T) {
	t.Parallel()
	run(t, ledger.Config{
		Replicas: 2, Kills: 4, SelfKills: 1,
		Forwarder: ledger.ForwarderConfig{Ordering: forwarder.None},
	})
}

// Where nobody dies, replicas that race for the same lanes send nothing twice: no kill
// explains a single duplicate here.
func TestFourReplicasSendNothingTwiceUnlessKilled(t *testing.T) {
	t.Parallel()
	run(t, ledger.Config{Replicas: 4})
}

func TestFourReplicasMarkNothingTwiceUnlessKilled(t *testing.T) {
	t.Parallel()
	run(t, ledger.Config{Replicas: 4, Forwarder: ledger.ForwarderConfig{Settlement: forwarder.MarkPublished}})
}

func TestMarkPublished(t *testing.T) {
	t.Parallel()
	run(t, ledger.Config{
		Replicas: 2, Kills: 4, SelfKills: 1,
		Forwarder: ledger.ForwarderConfig{Settlement: forwarder.MarkPublished},
	})
}

// A run that is given up says why, and leaves no process: those would hold the test's
// tables, and no goroutine, which TestMain would find.
func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cfg := config(t, ledger.Config{Replicas: 2, Kills: 1000, SelfKills: 1})
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, enough)
	defer cancel()
	_, err := ledger.Run(ctx, cfg)
	require.ErrorIs(t, err, enough)
}

func run(t *testing.T, cfg ledger.Config) ledger.Report {
	t.Helper()
	report, err := ledger.Run(t.Context(), config(t, cfg))
	require.NoError(t, err)
	ledger.Require(t, report)
	return report
}

func config(t *testing.T, cfg ledger.Config) ledger.Config {
	t.Helper()
	db := testdb.New(t)
	broker := ledger.NewKafka(t)
	cfg.DSN, cfg.Schema = db.DSN, db.Schema
	cfg.Broker, cfg.Destinations = broker, []string{broker.NewDestination(t), broker.NewDestination(t)}
	return cfg
}

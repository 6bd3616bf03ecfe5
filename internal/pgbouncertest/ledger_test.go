package pgbouncertest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// Orders in the database come to their effects through a real broker, each once and in
// order, while forwarder processes are killed: writers, forwarders and consumer all go
// through PgBouncer, and there are more of them than server connections.
func TestLedger(t *testing.T) {
	t.Parallel()
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		k := ledger.NewKafka(t)
		runLedger(t, k, modes[0], k.NewDestination)
	})
	t.Run("amqp", func(t *testing.T) {
		t.Parallel()
		a := ledger.NewAMQP(t)
		runLedger(t, a, modes[1], a.NewDestination)
	})
}

func runLedger(t *testing.T, broker ledger.Broker, m mode, newDestination func(t *testing.T) string) {
	t.Helper()
	db := newDatabase(t, `''`) // the ledger's own statements are not made for a hostile one
	require.NoError(t, db.schema.Migrate(t.Context(), db.direct))
	cfg := ledger.Config{
		DSN: db.dsn(t, m), Schema: db.schema, Broker: broker,
		Replicas: 3, Kills: 4, SelfKills: 1, Transactions: 400,
	}
	for range 4 {
		cfg.Destinations = append(cfg.Destinations, newDestination(t))
	}
	report, err := ledger.Run(t.Context(), cfg)
	require.NoError(t, err)
	ledger.Require(t, report)
}

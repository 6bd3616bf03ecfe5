package sqlsuite_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/internal/testkafka"
	"github.com/watermill-outbox/outbox/schema"
)

const (
	wait = 30 * time.Second
	tick = 5 * time.Millisecond
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

func newPublisher(t *testing.T, db *sql.DB, tables schema.Postgres) *wmsql.Publisher {
	t.Helper()
	publisher, err := wmsql.NewPublisher(db, wmsql.PublisherConfig{SchemaAdapter: tables}, nil)
	require.NoError(t, err)
	return publisher
}

func newSubscriber(t *testing.T, db *sql.DB, tables schema.Postgres) message.Subscriber {
	t.Helper()
	stock, err := wmsql.NewSubscriber(db, wmsql.SubscriberConfig{
		SchemaAdapter:  tables,
		OffsetsAdapter: tables,
		PollInterval:   tick,
		ResendInterval: tick,
		RetryInterval:  tick,
	}, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	subscriber := &closingSubscriber{Subscriber: stock}
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	return subscriber
}

func receive(t *testing.T, received <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg := <-received:
		require.NotNil(t, msg, "the subscription has ended")
		return msg
	case <-time.After(wait):
		require.Fail(t, "no message came")
		return nil
	}
}

func runForwarder(t *testing.T, db *testdb.DB, cfg forwarder.Config) {
	t.Helper()
	logger := watermill.NewStdLogger(false, false)
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: testkafka.Brokers()}, logger)
	require.NoError(t, err)
	cfg.Schema = db.Schema
	f, err := forwarder.New(db.DB, publisher, cfg, logger)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
		require.NoError(t, publisher.Close())
	})
}

func requireEmptyOutbox(t *testing.T, db *testdb.DB) {
	t.Helper()
	require.Eventually(t, func() bool {
		var rows int
		err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()).Scan(&rows)
		return err == nil && rows == 0
	}, wait, tick)
}

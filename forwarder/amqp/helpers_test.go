package amqp_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

const patience = 30 * time.Second

func newPublisher(t *testing.T, cfg amqp.Config) *amqp.Publisher {
	t.Helper()
	publisher, err := amqp.NewPublisher(cfg, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	return publisher
}

// queues is a Config for queues that the test declares itself.
func queues() amqp.Config {
	cfg := amqp.NewQueueConfig(testamqp.URI())
	cfg.DeclareQueues = false
	return cfg
}

func outgoing(destination, key, id, payload string) forwarder.Outgoing {
	return forwarder.Outgoing{Destination: destination, PartitionKey: key, Message: message.NewMessage(id, []byte(payload))}
}

func publish(t *testing.T, publisher *amqp.Publisher, msgs ...forwarder.Outgoing) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return publisher.PublishBatch(ctx, msgs)
}

func ids(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d", prefix, i+1)
	}
	return list
}

func takeIDs(t *testing.T, queue string, n int) []string {
	t.Helper()
	got := []string{}
	for _, delivery := range testamqp.Take(t, queue, n) {
		got = append(got, delivery.MessageId)
	}
	return got
}

func insert(t *testing.T, db *testdb.DB, destination, key string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := db.ExecContext(t.Context(),
			`INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload) VALUES ($1, $2, $3, 'x')`, id, destination, key)
		require.NoError(t, err)
	}
}

func outboxRows(t *testing.T, db *testdb.DB, where string) int {
	t.Helper()
	var rows int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()+` WHERE `+where).Scan(&rows))
	return rows
}

func requireDrained(t *testing.T, db *testdb.DB) {
	t.Helper()
	require.Eventually(t, func() bool { return outboxRows(t, db, `true`) == 0 }, patience, 5*time.Millisecond)
}

func runForwarder(t *testing.T, db *testdb.DB, publisher message.Publisher) (stop func() error) {
	t.Helper()
	f, err := forwarder.New(db.DB, publisher, forwarder.Config{
		Schema:       db.Schema,
		PollInterval: 2 * time.Millisecond,
		RetryInitial: 10 * time.Millisecond,
		RetryMax:     100 * time.Millisecond,
	}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { require.NoError(t, stop()) })
	return stop
}

// subscribe uses watermill-amqp's own subscriber.
func subscribe(t *testing.T, cfg wmamqp.Config, topic string) <-chan *message.Message {
	t.Helper()
	subscriber, err := testamqp.NewSubscriber(cfg, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	received, err := subscriber.Subscribe(context.WithoutCancel(t.Context()), topic)
	require.NoError(t, err)
	return received
}

// receive takes the next message and acks it.
func receive(t *testing.T, from <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg := <-from:
		msg.Ack()
		return msg
	case <-time.After(patience):
		require.FailNow(t, "no message came")
		panic("unreachable")
	}
}

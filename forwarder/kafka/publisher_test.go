package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

const awkward = `{"path":"C:\\dir","quote":"\"","newline":"\n","accent":"\u00e9"}`

// The whole way: a row that a transaction committed, written in plain SQL or through
// the publisher, arrives at watermill-kafka's subscriber.
func TestCommittedRowsReachWatermillSubscriber(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	topic := testkafka.NewTopic(t, 3)
	runForwarder(t, db)
	received := subscribe(t, topic)

	threeColumns := `INSERT INTO ` + db.Schema.Outbox() + ` (id, destination, payload) VALUES `
	for statement, args := range map[string][]any{
		`('sql', '` + topic + `', '` + awkward + `')`: nil,
		`('sql', $1, $2)`:                   {topic, awkward},
		`('sql', $1::varchar, $2::varchar)`: {topic, awkward},
	} {
		_, err := db.ExecContext(t.Context(), threeColumns+statement, args...)
		require.NoError(t, err)
		msg := receive(t, received)
		require.Equal(t, "sql", msg.UUID)
		require.Equal(t, []byte(awkward), []byte(msg.Payload)) //nolint:testifylint // byte for byte, not as JSON
		require.Equal(t, "sql", messageKey(t, msg))
		require.Empty(t, msg.Metadata)
	}

	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.Schema}, nil)
	require.NoError(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	sent := message.NewMessage("go-1", []byte{0, 1, 0xff, 0xfe})
	sent.Metadata = message.Metadata{
		outbox.PartitionKeyMetadata: "order-7", "type": "order.created", "empty": "", "text": "é\n\\",
	}
	require.NoError(t, publisher.PublishTx(t.Context(), tx, topic, sent))
	require.NoError(t, tx.Commit())
	msg := receive(t, received)
	require.Equal(t, sent.UUID, msg.UUID)
	require.Equal(t, []byte(sent.Payload), []byte(msg.Payload))
	require.Equal(t, sent.Metadata, msg.Metadata)
	require.Equal(t, "order-7", messageKey(t, msg))
	requireEmptyOutbox(t, db)
}

func requireEmptyOutbox(t *testing.T, db *testdb.DB) {
	t.Helper()
	require.Eventually(t, func() bool {
		var rows int
		err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()).Scan(&rows)
		return err == nil && rows == 0
	}, 30*time.Second, 5*time.Millisecond)
}

func newPublisher(t *testing.T, cfg kafka.Config) *kafka.Publisher {
	t.Helper()
	cfg.Brokers = testkafka.Brokers()
	publisher, err := kafka.NewPublisher(cfg, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	return publisher
}

func runForwarder(t *testing.T, db *testdb.DB) {
	t.Helper()
	runForwarderWith(t, db, newPublisher(t, kafka.Config{}))
}

func runForwarderWith(t *testing.T, db *testdb.DB, publisher message.Publisher) {
	t.Helper()
	f, err := forwarder.New(db.DB, publisher, forwarder.Config{Schema: db.Schema}, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// subscribe returns what watermill-kafka's subscriber receives, as it is by default.
func subscribe(t *testing.T, topic string) <-chan *message.Message {
	t.Helper()
	subscriber, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers:                testkafka.Brokers(),
		Unmarshaler:            wmkafka.DefaultMarshaler{},
		OverwriteSaramaConfig:  nil,
		ConsumerGroup:          "",
		InitializeTopicDetails: nil,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	received, err := subscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return received
}

func receive(t *testing.T, received <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg := <-received:
		require.NotNil(t, msg)
		msg.Ack()
		return msg
	case <-time.After(30 * time.Second):
		require.Fail(t, "no message came")
		return nil
	}
}

func messageKey(t *testing.T, msg *message.Message) string {
	t.Helper()
	key, ok := wmkafka.MessageKeyFromCtx(msg.Context())
	require.True(t, ok)
	return string(key)
}

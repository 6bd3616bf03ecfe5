package embedded_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

func startKafka(t *testing.T, cfg embedded.KafkaConfig) *embedded.Kafka {
	t.Helper()

	broker, err := embedded.StartKafka(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })

	return broker
}

// newProducer is idempotent with acks=all: franz-go's defaults.
func newProducer(t *testing.T, broker *embedded.Kafka) *kgo.Client {
	t.Helper()

	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Brokers()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)

	return client
}

// What an idempotent franz-go producer writes, a watermill-kafka consumer
// group reads, with ids, headers and the order of each key.
func TestKafkaRoundTrip(t *testing.T) {
	t.Parallel()

	const topic, keys, perKey = "orders", 5, 40

	broker := startKafka(t, embedded.KafkaConfig{Topics: []string{topic, "others"}, Partitions: 3})
	producer := newProducer(t, broker)

	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()

	var records []*kgo.Record

	for n := range perKey {
		for key := range keys {
			records = append(records, &kgo.Record{
				Topic: topic,
				Key:   fmt.Appendf(nil, "key-%d", key),
				Value: fmt.Appendf(nil, "%d", n),
				Headers: []kgo.RecordHeader{
					{Key: kafka.UUIDHeaderKey, Value: fmt.Appendf(nil, "%d/%d", key, n)},
					{Key: "traceparent", Value: []byte("00-ü")},
				},
			})
		}
	}

	require.NoError(t, producer.ProduceSync(ctx, records...).FirstErr())

	// The first half, and then the rest by another member of the group.
	next := make(map[string]int)

	consume(ctx, t, broker, topic, keys*perKey/2, next)
	repeated := consume(ctx, t, broker, topic, keys*perKey/2, next)
	require.Less(t, repeated, keys*perKey/2, "the group's committed offsets count")

	for key := range keys {
		require.Equal(t, perKey, next[fmt.Sprintf("key-%d", key)])
	}
}

// consume reads until it has count messages that are new, and returns how many
// were not: the offset of the last acknowledged ones may not be committed.
func consume(
	ctx context.Context, t *testing.T, broker *embedded.Kafka, topic string, count int, next map[string]int,
) int {
	t.Helper()

	saramaConfig := kafka.DefaultSaramaSubscriberConfig()
	saramaConfig.Consumer.Offsets.Initial = sarama.OffsetOldest

	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers:               broker.Brokers(),
		Unmarshaler:           kafka.DefaultMarshaler{},
		ConsumerGroup:         "payments",
		OverwriteSaramaConfig: saramaConfig,
	}, watermill.NopLogger{})
	require.NoError(t, err)

	messages, err := subscriber.Subscribe(ctx, topic)
	require.NoError(t, err)

	repeated := 0

	for count > 0 {
		var msg *message.Message

		select {
		case msg = <-messages:
			require.NotNil(t, msg, "the subscription ended")
		case <-ctx.Done():
			require.FailNow(t, "no message in time", "so far %v", next)
		}

		key, found := kafka.MessageKeyFromCtx(msg.Context()) //nolint:contextcheck // The key lies in this one.
		require.True(t, found)

		n, err := strconv.Atoi(string(msg.Payload))
		require.NoError(t, err)
		require.LessOrEqual(t, n, next[string(key)], "out of order: key %s", key)
		require.Equal(t, fmt.Sprintf("%s/%d", string(key)[len("key-"):], n), msg.UUID)
		require.Equal(t, "00-ü", msg.Metadata.Get("traceparent"))

		if n == next[string(key)] {
			next[string(key)]++
			count--
		} else {
			repeated++
		}

		msg.Ack()
	}

	require.NoError(t, subscriber.Close())

	return repeated
}

func TestKafkaUnknownTopic(t *testing.T) {
	t.Parallel()

	broker := startKafka(t, embedded.KafkaConfig{})
	producer := newProducer(t, broker)

	err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "nowhere", Value: []byte("x")}).FirstErr()
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
}

func TestKafkaClose(t *testing.T) {
	t.Parallel()

	broker := startKafka(t, embedded.KafkaConfig{Topics: []string{"orders"}})
	require.Len(t, broker.Brokers(), 1)
	require.True(t, answers(t, broker.Brokers()[0]))

	require.NoError(t, broker.Close())
	require.False(t, answers(t, broker.Brokers()[0]))
	require.NoError(t, broker.Close(), "again")
}

func TestKafkaRefused(t *testing.T) {
	t.Parallel()

	for want, cfg := range map[string]embedded.KafkaConfig{
		"port 65536": {Port: 65536},
		"negative":   {Partitions: -1},
	} {
		_, err := embedded.StartKafka(t.Context(), cfg)
		require.ErrorContains(t, err, want)
	}
}

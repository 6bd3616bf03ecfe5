package conformance_test

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/cenkalti/backoff/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

const partitions = 8

func TestKafka(t *testing.T) {
	t.Parallel()
	run(t, newApacheKafka(t), variant{
		write: publishTx,
		features: tests.Features{
			ConsumerGroups: true,
			Persistent:     true,
		},
	})
}

func TestKafkaOrdered(t *testing.T) {
	t.Parallel()
	run(t, newApacheKafka(t), variant{
		write:        publishFromContext,
		partitionKey: payloadAsKey,
		features: tests.Features{
			ConsumerGroups:  true,
			GuaranteedOrder: true,
			Persistent:      true,
			ForceShort:      true,
		},
	})
}

func TestKafkaWithoutGroups(t *testing.T) {
	t.Parallel()
	broker := newApacheKafka(t)
	broker.withoutGroups = true
	run(t, broker, variant{
		write: publishInTx,
		features: tests.Features{
			Persistent:                       true,
			NewSubscriberReceivesOldMessages: true,
			ForceShort:                       true,
		},
	})
}

// apacheKafka is the broker at testkafka's address.
type apacheKafka struct {
	client        *kgo.Client
	prefix        string
	withoutGroups bool
}

func newApacheKafka(t *testing.T) *apacheKafka {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(testkafka.Brokers()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	k := &apacheKafka{client: client, prefix: testkafka.TopicName(t) + "-"}
	t.Cleanup(func() { assert.NoError(t, deleteTopics(client, k.prefix)) })
	return k
}

func (k *apacheKafka) topics() string { return k.prefix }

func (k *apacheKafka) publisher(t *testing.T) message.Publisher {
	t.Helper()
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: testkafka.Brokers()}, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	return publisher
}

func (k *apacheKafka) subscriber(t *testing.T, group string) message.Subscriber {
	t.Helper()
	config := wmkafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	// As watermill-kafka has it for the suite: members that go are soon noticed.
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Consumer.Group.Rebalance.Timeout = 3 * time.Second
	if k.withoutGroups {
		group = ""
	} else {
		group += "-" + t.Name() // groups of several topics would rebalance for each other
	}
	subscriber, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers:                testkafka.Brokers(),
		Unmarshaler:            wmkafka.DefaultMarshaler{},
		OverwriteSaramaConfig:  config,
		ConsumerGroup:          group,
		NackResendSleep:        wmkafka.NoSleep,
		InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1},
	}, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	return &kafkaSubscriber{Subscriber: subscriber, client: k.client}
}

// kafkaSubscriber is the stock one. Where there is no group, its Subscribe fails while the
// broker does not lead yet what its controller has created.
type kafkaSubscriber struct {
	*wmkafka.Subscriber

	client *kgo.Client
}

func (s *kafkaSubscriber) SubscribeInitialize(topic string) error {
	if err := s.Subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := backoff.Retry(ctx, func() (map[int32]int64, error) {
		return testkafka.Ends(ctx, s.client, topic, partitions)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(10*time.Millisecond)))
	return err
}

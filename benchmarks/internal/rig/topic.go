package rig

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

// Kafka is the cluster of KAFKA_BROKERS.
func (r Rig) Kafka() FarEnd { return kafkaCluster{brokers: r.Brokers} }

type kafkaCluster struct{ brokers []string }

func (kafkaCluster) Name() string { return "Kafka" }

func (k kafkaCluster) Publisher() (Publisher, error) {
	return kafka.NewPublisher(kafka.Config{Brokers: k.brokers}, nil)
}

func (k kafkaCluster) Watermills(bool) (message.Publisher, error) {
	config := wmkafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	return wmkafka.NewPublisher(wmkafka.PublisherConfig{
		Brokers: k.brokers, Marshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: config,
	}, nopLogger)
}

// partitions are enough for the clients to work on several at once.
const partitions = 4

func (k kafkaCluster) NewDestination(ctx context.Context) (string, error) {
	name := NewName()
	return name, k.with(func(admin *kadm.Client, _ *kgo.Client) error {
		created, err := admin.CreateTopic(ctx, partitions, 1, nil, name)
		if err := errors.Join(err, created.Err); err != nil {
			return err
		}
		return await(ctx, func() (bool, error) { // every client sees it
			topics, err := admin.ListTopics(ctx, name)
			return topics.Error() == nil && len(topics[name].Partitions) == partitions, err
		})
	})
}

func (k kafkaCluster) Remove(ctx context.Context, topic string) error {
	return k.with(func(admin *kadm.Client, _ *kgo.Client) error {
		removed, err := admin.DeleteTopic(ctx, topic)
		return errors.Join(err, removed.Err)
	})
}

func (k kafkaCluster) with(use func(admin *kadm.Client, client *kgo.Client) error, opts ...kgo.Opt) error {
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(k.brokers...))...)
	if err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	defer client.Close()
	if err := use(kadm.NewClient(client), client); err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	return nil
}

// Count reads the topic from its beginning to its end.
func (k kafkaCluster) Count(ctx context.Context, topic string, tally *compare.Tally) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return k.with(func(admin *kadm.Client, client *kgo.Client) error {
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err := errors.Join(err, ends.Error()); err != nil {
			return err
		}
		left := int64(0)
		ends.Each(func(end kadm.ListedOffset) { left += end.Offset })
		for left > 0 {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return err
			}
			fetches.EachRecord(func(record *kgo.Record) { tally.Add(uuidOf(record)) })
			left -= int64(fetches.NumRecords())
		}
		return nil
	}, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
}

func uuidOf(record *kgo.Record) string {
	for _, header := range record.Headers {
		if header.Key == wmkafka.UUIDHeaderKey {
			return string(header.Value)
		}
	}
	return ""
}

package main

import (
	"context"
	"errors"

	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
)

// kafkaRecords are the records of the run's topics, which begin at zero.
type kafkaRecords struct {
	addresses servers.Addresses
	client    *kgo.Client
	admin     *kadm.Client
}

func openKafkaRecords(addresses servers.Addresses) (*kafkaRecords, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses.Broker.Kafka.Brokers...))
	if err != nil {
		return nil, err
	}
	return &kafkaRecords{addresses: addresses, client: client, admin: kadm.NewClient(client)}, nil
}

func (*kafkaRecords) keyName() string { return "key" }

func (k *kafkaRecords) close() error {
	k.client.Close()
	return nil
}

func (k *kafkaRecords) count(ctx context.Context, destination string) (n int64, err error) {
	ends, err := k.admin.ListEndOffsets(ctx, k.addresses.Topic(destination))
	if err := errors.Join(err, ends.Error()); err != nil {
		return 0, err
	}
	ends.Each(func(end kadm.ListedOffset) { n += end.Offset })
	return n, nil
}

func (k *kafkaRecords) read(ctx context.Context, destination string, take func(id, key string)) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(k.addresses.Broker.Kafka.Brokers...),
		kgo.ConsumeTopics(k.addresses.Topic(destination)),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	remaining, err := k.count(ctx, destination)
	if err != nil {
		return err
	}
	for remaining > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		for record := range fetches.RecordsAll() {
			take(eventID(record), string(record.Key))
			remaining--
		}
	}
	return nil
}

func eventID(record *kgo.Record) string {
	for _, header := range record.Headers {
		if header.Key == wmkafka.UUIDHeaderKey {
			return string(header.Value)
		}
	}
	return ""
}

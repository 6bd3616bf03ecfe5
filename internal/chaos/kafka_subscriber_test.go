package chaos_test

import (
	"context"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// kafkaBroker is the ledger's Kafka, but for the subscriber: the race detector finds sarama at
// fault when it opens a connection again.
type kafkaBroker struct {
	*ledger.Kafka

	consumers string // the address that they connect to
}

// Subscriber implements ledger.Broker.
func (k *kafkaBroker) Subscriber(group string) (message.Subscriber, error) {
	return &kafkaSubscriber{address: k.consumers, group: group}, nil
}

// kafkaSubscriber hands out one message at a time, and commits each.
type kafkaSubscriber struct {
	subscriptions

	address, group string
}

func (s *kafkaSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(s.address), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.RetryTimeout(2*time.Second),
		// A member that came back under another name waits for its former self to be given up.
		kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second),
	)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	return s.add(ctx, func(ctx context.Context, messages chan<- *message.Message) {
		defer client.CloseAllowingRebalance()
		for ctx.Err() == nil {
			for record := range client.PollRecords(ctx, 10).RecordsAll() {
				if handOverRecord(ctx, record, messages) != nil {
					return
				}
				_ = client.CommitRecords(ctx, record) // a later one does as well
			}
			client.AllowRebalance()
		}
	}), nil
}

// handOverRecord returns when a record is handled, however often that fails.
func handOverRecord(ctx context.Context, record *kgo.Record, messages chan<- *message.Message) error {
	received := &sarama.ConsumerMessage{Key: record.Key, Value: record.Value}
	for _, h := range record.Headers {
		received.Headers = append(received.Headers, &sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
	}
	for {
		msg, err := wmkafka.DefaultMarshaler{}.Unmarshal(received)
		if err != nil {
			return err
		}
		if acked, err := handOver(ctx, msg, messages); acked || err != nil {
			return err
		}
	}
}

package ledger

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-outbox/outbox/internal/testkafka"
)

const kindKafka = "kafka"

// KafkaPartitions is how many a destination must have.
const KafkaPartitions = 4

// Kafka is the Broker at testkafka's address.
type Kafka struct {
	brokers               []string
	forwarders, consumers []string
	client                *kgo.Client
}

// NewKafka returns the test broker; its connections are closed after the test.
func NewKafka(t *testing.T) *Kafka {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(testkafka.Brokers()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	k := &Kafka{brokers: testkafka.Brokers(), client: client}
	return k.Through(k.brokers, k.brokers)
}

// Through has forwarders and consumers connect elsewhere, as where something lies in
// between: to listeners of the broker that are advertised under these addresses.
func (k *Kafka) Through(forwarders, consumers []string) *Kafka {
	k.forwarders, k.consumers = forwarders, consumers
	return k
}

// NewDestination creates a topic that is deleted after the test.
func (k *Kafka) NewDestination(t *testing.T) string {
	t.Helper()
	return testkafka.NewTopic(t, KafkaPartitions)
}

// Address implements Broker.
func (k *Kafka) Address() BrokerAddress { return BrokerAddress{Kind: kindKafka, Hosts: k.forwarders} }

// Subscriber implements Broker.
func (k *Kafka) Subscriber(group string) (message.Subscriber, error) {
	config := wmkafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 50 * time.Millisecond // Unhandled waits for it
	subscriber, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers:               k.consumers,
		Unmarshaler:           wmkafka.DefaultMarshaler{},
		OverwriteSaramaConfig: config,
		ConsumerGroup:         group,
		NackResendSleep:       time.Millisecond,
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("kafka subscriber: %w", err)
	}
	return subscriber, nil
}

// Deliveries implements Broker.
func (k *Kafka) Deliveries(ctx context.Context, destination string) ([]Delivery, error) {
	ends, err := testkafka.Ends(ctx, k.client, destination, KafkaPartitions)
	if err != nil {
		return nil, err
	}
	starts := map[int32]kgo.Offset{}
	for partition, end := range ends {
		if end > 0 {
			starts[partition] = kgo.NewOffset().AtStart()
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(k.brokers...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{destination: starts}),
	)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", destination, err)
	}
	defer client.Close()

	var deliveries []Delivery
	for len(starts) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", destination, err)
		}
		for record := range fetches.RecordsAll() {
			deliveries = append(deliveries, delivery(record))
			if record.Offset+1 >= ends[record.Partition] {
				delete(starts, record.Partition)
			}
		}
	}
	return deliveries, nil
}

func delivery(record *kgo.Record) Delivery {
	d := Delivery{
		Queue:        record.Topic + "/" + strconv.Itoa(int(record.Partition)),
		PartitionKey: string(record.Key),
		Payload:      record.Value,
		Metadata:     map[string]string{},
	}
	for _, header := range record.Headers {
		if header.Key == wmkafka.UUIDHeaderKey {
			d.ID = string(header.Value)
		} else {
			d.Metadata[header.Key] = string(header.Value)
		}
	}
	return d
}

// Unhandled implements Broker.
func (k *Kafka) Unhandled(ctx context.Context, group, destination string) (int64, error) {
	ends, err := testkafka.Ends(ctx, k.client, destination, KafkaPartitions)
	if err != nil {
		return 0, err
	}
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = group
	topic := kmsg.NewOffsetFetchRequestTopic()
	topic.Topic = destination
	for partition := range ends {
		topic.Partitions = append(topic.Partitions, partition)
	}
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, k.client)
	if err != nil {
		return 0, fmt.Errorf("offsets of group %s: %w", group, err)
	}
	unhandled := int64(0)
	for _, end := range ends {
		unhandled += end
	}
	for _, topic := range response.Topics {
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return 0, fmt.Errorf("offsets of group %s: %w", group, err)
			}
			unhandled -= max(0, partition.Offset) // -1: nothing acked yet
		}
	}
	return unhandled, nil
}

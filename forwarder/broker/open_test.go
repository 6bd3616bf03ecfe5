package broker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

const patience = 30 * time.Second

// sendOrder is a service's code: it does not know which broker it is.
func sendOrder(t *testing.T, cfg broker.Config, destination string) {
	t.Helper()
	publisher, err := broker.Open(cfg, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	batches, ok := publisher.(forwarder.BatchPublisher)
	require.True(t, ok)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	msg := message.NewMessage("event-1", []byte("created"))
	results := batches.PublishBatch(ctx, []forwarder.Outgoing{{Destination: destination, PartitionKey: "order-7", Message: msg}})
	require.NoError(t, results[0])
}

func TestSwapByConfiguration(t *testing.T) {
	t.Parallel()
	both := "kafka: {brokers: ['" + strings.Join(testkafka.Brokers(), "','") + "']}\namqp: {uri: '" + testamqp.URI() + "'}\n"
	topic := testkafka.NewTopic(t, 1)
	queue := testamqp.Name(t) // the publisher declares it
	testamqp.DeleteQueueAfter(t, queue)

	toKafka, err := broker.LoadFrom(yamlFile(t, both+"kind: kafka\n"), "")
	require.NoError(t, err)
	sendOrder(t, toKafka, topic)
	record := testkafka.NewConsumer(t, topic).Take(t, 1)[0]
	require.Equal(t, "order-7", string(record.Key))
	require.Equal(t, "created", string(record.Value))

	toRabbit, err := broker.LoadFrom(yamlFile(t, both+"kind: kafka\n"), "OUTBOX_BROKER_", "OUTBOX_BROKER_KIND=amqp")
	require.NoError(t, err)
	sendOrder(t, toRabbit, queue)
	delivery := testamqp.Take(t, queue, 1)[0]
	require.Equal(t, "event-1", delivery.MessageId)
	require.Equal(t, "created", string(delivery.Body))
}

func TestConfigMadeInGo(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	sendOrder(t, broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: testkafka.Brokers()}}, topic)
	require.Len(t, testkafka.NewConsumer(t, topic).Take(t, 1), 1)
	queue := testamqp.Name(t)
	testamqp.DeleteQueueAfter(t, queue)
	sendOrder(t, broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: broker.URI(testamqp.URI())}}, queue)
	require.Len(t, testamqp.Take(t, queue, 1), 1)
}

// Settings reach the broker: a queue that is not declared takes nothing, a topic in
// RabbitMQ is an exchange, a record that is too large is refused.
func TestSettingsAreUsed(t *testing.T) {
	t.Parallel()
	publish := func(t *testing.T, cfg broker.Config, destination, payload string) error {
		t.Helper()
		publisher, err := broker.Open(cfg, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, publisher.Close()) }()
		msg := message.NewMessage("event-1", []byte(payload))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		msg.SetContext(ctx)
		return publisher.Publish(destination, msg)
	}
	rabbit := broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: broker.URI(testamqp.URI())}}

	rabbit.AMQP.DeclareQueues = new(false)
	require.ErrorIs(t, publish(t, rabbit, testamqp.Name(t), "x"), forwarder.ErrDestinationUnavailable)

	exchange, queue := testamqp.Name(t), testamqp.NewQueue(t, nil)
	channel := testamqp.Channel(t)
	require.NoError(t, channel.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil))
	testamqp.DeleteExchangeAfter(t, exchange)
	require.NoError(t, channel.QueueBind(queue, "", exchange, false, nil))
	rabbit.AMQP.Topology, rabbit.AMQP.DeclareQueues = broker.TopologyPubSub, nil
	require.NoError(t, publish(t, rabbit, exchange, "x"))
	require.Len(t, testamqp.Take(t, queue, 1), 1)

	small := broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: testkafka.Brokers(), MaxMessageBytes: 600}}
	require.ErrorIs(t, publish(t, small, testkafka.NewTopic(t, 1), strings.Repeat("x", 700)), forwarder.ErrRefused)
}

// Each way through RabbitMQ, from a file: where the message arrives, and how.
func TestTopologiesOfAFile(t *testing.T) {
	t.Parallel()
	exchange, queue := testamqp.Name(t), testamqp.NewQueue(t, nil)
	declared, quorum := testamqp.Name(t), amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	testamqp.DeleteQueueAfter(t, declared)
	channel := testamqp.Channel(t)
	for _, exchangeType := range []string{"topic", "direct"} {
		name := exchange + "-" + exchangeType
		require.NoError(t, channel.ExchangeDeclare(name, exchangeType, true, false, false, false, nil))
		testamqp.DeleteExchangeAfter(t, name)
		require.NoError(t, channel.QueueBind(queue, "orders.created", name, false, nil))
	}
	for name, test := range map[string]struct {
		section, destination string
		metadata             message.Metadata
		queue                string
	}{
		"topic, one exchange":         {"topology: topic, exchange: " + exchange + "-topic", "orders.created", nil, queue},
		"topic, key in the metadata":  {"topology: topic", exchange + "-topic", message.Metadata{amqp.DefaultRoutingKeyMetadata: "orders.created"}, queue},
		"direct, one exchange":        {"topology: direct, exchange: " + exchange + "-direct, existing_exchanges: true", "orders.created", nil, queue},
		"direct, key in the metadata": {"topology: direct, routing_key_metadata: k", exchange + "-direct", message.Metadata{"k": "orders.created"}, queue},
		"one exchange, key in it":     {"topology: topic, routing_key_metadata: k, exchange: " + exchange + "-topic", "any", message.Metadata{"k": "orders.created"}, queue},
		"exchange in the metadata":    {"topology: topic, exchange_metadata: e", "orders.created", message.Metadata{"e": exchange + "-topic"}, queue},
		"both in the metadata":        {"topology: direct, exchange_metadata: e, routing_key_metadata: k", "any", message.Metadata{"e": exchange + "-direct", "k": "orders.created"}, queue},
		"queue in the metadata":       {"routing_key_metadata: q", "any", message.Metadata{"q": queue}, queue},
		"quorum queue":                {"queue_type: quorum", declared, nil, declared},
	} {
		cfg, err := broker.LoadFrom(yamlFile(t, "kind: amqp\namqp: {uri: '"+testamqp.URI()+"', "+test.section+"}\n"), "")
		require.NoError(t, err, name)
		publisher, err := broker.Open(cfg, nil)
		require.NoError(t, err, name)
		msg := message.NewMessage(name, nil)
		msg.Metadata = test.metadata
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		msg.SetContext(ctx)
		require.NoError(t, publisher.Publish(test.destination, msg), name)
		cancel()
		require.NoError(t, publisher.Close())
		require.Equal(t, name, testamqp.Take(t, test.queue, 1)[0].MessageId)
	}
	testamqp.DeclareQueue(t, declared, quorum) // else it is of another type
}

func TestOpenRefusesWhatValidateRefuses(t *testing.T) {
	t.Parallel()
	publisher, err := broker.Open(broker.Config{}, nil)
	require.Nil(t, publisher)
	require.ErrorIs(t, err, broker.ErrInvalidConfig)
	require.ErrorContains(t, err, `kind: is "", allowed are "kafka" and "amqp"`)
	_, err = broker.Open(broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{MaxMessageBytes: 1}}, nil)
	require.ErrorIs(t, err, kafka.ErrInvalidConfig)
	_, err = broker.Open(broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "http://127.0.0.1/"}}, nil)
	require.ErrorIs(t, err, amqp.ErrInvalidConfig)
}

package conformance_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
)

func TestRabbitMQQueue(t *testing.T) {
	t.Parallel()
	run(t, newQueues(t, testamqp.URI()), variant{
		write:        publishTx,
		partitionKey: payloadAsKey,
		features: tests.Features{
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}

func TestRabbitMQPubSub(t *testing.T) {
	t.Parallel()
	run(t, newExchanges(t), variant{
		write:        publishInTx,
		partitionKey: payloadAsKey,
		features: tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}

func TestRabbitMQUnorderedMarkPublished(t *testing.T) {
	t.Parallel()
	run(t, newExchanges(t), variant{
		write:     publishFromContext,
		forwarder: forwarder.Config{Ordering: forwarder.None, Settlement: forwarder.MarkPublished},
		features: tests.Features{
			ConsumerGroups: true,
			Persistent:     true,
		},
	})
}

type rabbitMQ struct {
	prefix     string
	forwarding amqp.Config
	consuming  func(group string) wmamqp.Config
	declared   *declared
}

// newQueues is the topology in which the consumers of a topic share its queue.
func newQueues(t *testing.T, uri string) *rabbitMQ {
	t.Helper()
	return &rabbitMQ{
		prefix:     testamqp.Name(t) + "-",
		forwarding: amqp.NewQueueConfig(uri),
		consuming:  func(string) wmamqp.Config { return wmamqp.NewDurableQueueConfig(uri) },
		declared:   newDeclared(t, uri),
	}
}

// newExchanges is the topology in which each consumer group has its queue at a topic's
// exchange.
func newExchanges(t *testing.T) *rabbitMQ {
	t.Helper()
	return &rabbitMQ{
		prefix:     testamqp.Name(t) + "-",
		forwarding: amqp.NewPubSubConfig(testamqp.URI()),
		consuming: func(group string) wmamqp.Config {
			return wmamqp.NewDurablePubSubConfig(testamqp.URI(), wmamqp.GenerateQueueNameTopicNameWithSuffix(group))
		},
		declared: newDeclared(t, testamqp.URI()),
	}
}

func (b *rabbitMQ) topics() string { return b.prefix }

func (b *rabbitMQ) publisher(t *testing.T) message.Publisher {
	t.Helper()
	publisher, err := amqp.NewPublisher(b.forwarding, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	return publisher
}

func (b *rabbitMQ) subscriber(t *testing.T, group string) message.Subscriber {
	t.Helper()
	config := b.consuming(group)
	config.Queue.GenerateName = b.declared.noting(&b.declared.queues, config.Queue.GenerateName)
	config.Exchange.GenerateName = b.declared.noting(&b.declared.exchanges, config.Exchange.GenerateName)
	subscriber, err := testamqp.NewSubscriber(config, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	return subscriber
}

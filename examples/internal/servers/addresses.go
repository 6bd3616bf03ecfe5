package servers

import (
	"context"
	"errors"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/schema"
)

// Addresses is all that a process needs to take part in a run. It crosses the border
// between processes as JSON, and the broker in the environment.
type Addresses struct {
	// PostgresDSN leads to the run's own schema: the tables need not be qualified.
	PostgresDSN string `json:"postgres_dsn"`
	// Schema is the Postgres schema of all tables.
	Schema string `json:"schema"`
	// Broker is Kafka or RabbitMQ. BrokerVariables hand it on: as JSON its password would
	// be masked.
	Broker broker.Config `json:"-"`
	// TopicSuffix makes topics, consumer groups, exchanges and queues the run's own.
	TopicSuffix string `json:"topic_suffix"`
}

// Tables names the outbox and the inbox.
func (a Addresses) Tables() schema.Postgres { return schema.Postgres{Schema: a.Schema} }

// BrokerVariables are the environment variables from which broker.Load reads Broker.
func (a Addresses) BrokerVariables(prefix string) []string {
	return []string{
		prefix + "KIND=" + string(a.Broker.Kind),
		prefix + "KAFKA_BROKERS=" + strings.Join(a.Broker.Kafka.Brokers, ","),
		prefix + "AMQP_URI=" + string(a.Broker.AMQP.URI),
		prefix + "AMQP_TOPOLOGY=" + string(a.Broker.AMQP.Topology),
	}
}

// BrokerName is for people to read.
func (a Addresses) BrokerName() string {
	if a.Broker.Kind == broker.KindAMQP {
		return "RabbitMQ"
	}
	return "Kafka"
}

// Topic is the run's own topic for a destination, in RabbitMQ an exchange. A service
// with a broker of its own has no need of it: there the destination is the topic.
func (a Addresses) Topic(destination string) string { return destination + a.TopicSuffix }

// Queue is the run's own queue of a reader of a destination in RabbitMQ.
func (a Addresses) Queue(destination, reader string) string {
	return destination + "." + reader + a.TopicSuffix
}

// AuditQueue is a queue in RabbitMQ that takes all that is published to a destination,
// and that no service consumes.
func (a Addresses) AuditQueue(destination string) string { return a.Queue(destination, "audit") }

// Publisher is what a broker's publisher offers to a forwarder.
type Publisher interface {
	message.Publisher
	forwarder.BatchPublisher
}

var errNoBatches = errors.New("the publisher is no forwarder.BatchPublisher")

// InTopics makes p, which must be a forwarder.BatchPublisher too, publish each
// destination to the run's own topic.
func (a Addresses) InTopics(p message.Publisher) (Publisher, error) {
	publisher, ok := p.(Publisher)
	if !ok {
		return nil, errNoBatches
	}
	return inTopics{Publisher: publisher, addresses: a}, nil
}

type inTopics struct {
	Publisher

	addresses Addresses
}

func (t inTopics) Publish(destination string, msgs ...*message.Message) error {
	return t.Publisher.Publish(t.addresses.Topic(destination), msgs...) //nolint:wrapcheck // a decorator adds nothing
}

func (t inTopics) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	inTopic := make([]forwarder.Outgoing, len(msgs))
	for i, msg := range msgs {
		inTopic[i] = msg
		inTopic[i].Destination = t.addresses.Topic(msg.Destination)
	}
	return t.Publisher.PublishBatch(ctx, inTopic)
}

package servers

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/schema"
)

// Addresses is all that a process needs to take part in a run. It crosses the border
// between processes as JSON.
type Addresses struct {
	// PostgresDSN leads to the run's own schema: the tables need not be qualified.
	PostgresDSN string `json:"postgres_dsn"`
	// Schema is the Postgres schema of all tables.
	Schema string `json:"schema"`
	// Brokers are Kafka's.
	Brokers []string `json:"brokers"`
	// TopicSuffix makes topics and consumer groups the run's own.
	TopicSuffix string `json:"topic_suffix"`
}

// Tables names the outbox and the inbox.
func (a Addresses) Tables() schema.Postgres { return schema.Postgres{Schema: a.Schema} }

// Topic is the run's own topic for a destination. A service with a Kafka of its own
// has no need of it: there the destination is the topic.
func (a Addresses) Topic(destination string) string { return destination + a.TopicSuffix }

// Publisher is what a broker's publisher offers to a forwarder.
type Publisher interface {
	message.Publisher
	forwarder.BatchPublisher
}

// InTopics makes p publish each destination to the run's own topic.
func (a Addresses) InTopics(p Publisher) Publisher { return inTopics{Publisher: p, addresses: a} }

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

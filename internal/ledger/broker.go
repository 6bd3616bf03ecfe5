package ledger

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

// Broker is what the ledger needs to know of a message broker.
type Broker interface {
	// Address is what a forwarder process opens its publisher from.
	Address() BrokerAddress
	// Deliveries reads everything that lies in the destination. Those of one Queue are
	// in the order in which the broker hands them out.
	Deliveries(ctx context.Context, destination string) ([]Delivery, error)
	// Subscriber is a Watermill subscriber of a consumer group, from the beginning.
	Subscriber(group string) (message.Subscriber, error)
	// Unhandled is how many messages the group has not acked yet. While it has a
	// subscriber, those that this has in hand may be left out.
	Unhandled(ctx context.Context, group, destination string) (int64, error)
}

// Delivery is a message as it lies in the broker.
type Delivery struct {
	// Destination is the one that it was read from; the ledger fills it in.
	Destination string
	// Broker is which of several it came through. Two have no common order.
	Broker string
	// Queue is what has an order: a partition, a queue.
	Queue        string
	ID           string
	PartitionKey string
	Payload      []byte
	// Metadata is all of it, without what the broker's publisher adds, as the id.
	Metadata map[string]string
}

// BrokerAddress crosses the border between processes.
type BrokerAddress struct {
	Kind string
	// Hosts are addresses in the form that the kind of broker has for them.
	Hosts []string
}

type publisher interface {
	message.Publisher
	forwarder.BatchPublisher
}

func (a BrokerAddress) openPublisher(logger watermill.LoggerAdapter) (publisher, error) {
	switch a.Kind {
	case kindAMQP:
		return amqp.NewPublisher(amqp.NewPubSubConfig(a.Hosts[0]), logger)
	case kindKafka:
		return kafka.NewPublisher(kafka.Config{Brokers: a.Hosts}, logger)
	default:
		return nil, fmt.Errorf("ledger: unknown kind of broker %q", a.Kind)
	}
}

package ledger

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testamqp"
)

const (
	kindAMQP = "amqp"
	// recordSuffix names the queue that keeps everything that came to a destination.
	recordSuffix = "_record"
)

// AMQP is the Broker at testamqp's address. A destination is a fanout exchange.
type AMQP struct {
	uri                   string
	forwarders, consumers string

	mu         sync.Mutex
	connection *amqp091.Connection
}

// NewAMQP returns the test broker; its connection is closed after the test.
func NewAMQP(t *testing.T) *AMQP {
	t.Helper()
	a := &AMQP{uri: testamqp.URI()}
	_, err := a.connect()
	require.NoError(t, err, "no RabbitMQ: run \"make services\", or set AMQP_URI")
	t.Cleanup(func() { _ = a.connection.Close() })
	return a.Through(a.uri, a.uri)
}

// Through has forwarders and consumers connect elsewhere, as where something lies in
// between.
func (a *AMQP) Through(forwarders, consumers string) *AMQP {
	a.forwarders, a.consumers = forwarders, consumers
	return a
}

// connect returns the connection, a new one where the broker has closed it.
func (a *AMQP) connect() (*amqp091.Connection, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.connection != nil && !a.connection.IsClosed() {
		return a.connection, nil
	}
	connection, err := amqp091.Dial(a.uri)
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	a.connection = connection
	return connection, nil
}

// NewDestination declares an exchange and its record. They are deleted after the test,
// and so is the queue that the consumer of a run declares.
func (a *AMQP) NewDestination(t *testing.T) string {
	t.Helper()
	name := testamqp.Name(t)
	a.declare(t, name)
	return name
}

func (a *AMQP) declare(t *testing.T, name string) {
	t.Helper()
	connection, err := a.connect()
	require.NoError(t, err)
	channel, err := connection.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.ExchangeDeclare(name, amqp091.ExchangeFanout, true, false, false, false, nil))
	testamqp.DeleteExchangeAfter(t, name)
	testamqp.DeclareQueue(t, name+recordSuffix, nil)
	require.NoError(t, channel.QueueBind(name+recordSuffix, "", name, false, nil))
	testamqp.DeleteQueueAfter(t, groupQueue(groupOf(name))(name))
	require.NoError(t, channel.Close())
}

// Address implements Broker.
func (a *AMQP) Address() BrokerAddress {
	return BrokerAddress{Kind: kindAMQP, Hosts: []string{a.forwarders}}
}

func groupQueue(group string) wmamqp.QueueNameGenerator {
	return wmamqp.GenerateQueueNameTopicNameWithSuffix(group)
}

// Subscriber implements Broker. The group's queue is there once it subscribes, and stays.
func (a *AMQP) Subscriber(group string) (message.Subscriber, error) {
	subscriber, err := testamqp.NewSubscriber(wmamqp.NewDurablePubSubConfig(a.consumers, groupQueue(group)), watermill.NopLogger{})
	if err != nil {
		return nil, fmt.Errorf("amqp subscriber: %w", err)
	}
	return subscriber, nil
}

// Deliveries implements Broker. It acks nothing, so that all of it returns to its place
// when the channel closes.
func (a *AMQP) Deliveries(ctx context.Context, destination string) (deliveries []Delivery, err error) {
	record := destination + recordSuffix
	err = a.withQueue(record, func(channel *amqp091.Channel, ready int) error {
		const autoAck, exclusive = false, true
		received, err := channel.ConsumeWithContext(ctx, record, "", autoAck, exclusive, false, false, nil)
		if err != nil {
			return err
		}
		for len(deliveries) < ready {
			select {
			case r, ok := <-received:
				if !ok {
					return amqp091.ErrClosed
				}
				d, err := amqpDelivery(record, r)
				if err != nil {
					return err
				}
				deliveries = append(deliveries, d)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	return deliveries, err
}

// amqpDelivery: the messages of AMQP have no key of their own. The writers' metadata
// names it, unless an event is a unit of its own.
func amqpDelivery(queue string, received amqp091.Delivery) (Delivery, error) {
	msg, err := wmamqp.DefaultMarshaler{}.Unmarshal(received)
	if err != nil {
		return Delivery{}, err
	}
	key, keyed := msg.Metadata[outbox.PartitionKeyMetadata]
	if !keyed {
		key = msg.UUID
	}
	return Delivery{Queue: queue, ID: msg.UUID, PartitionKey: key, Payload: msg.Payload, Metadata: msg.Metadata}, nil
}

// Unhandled implements Broker. RabbitMQ counts what waits in the queue, not what a
// subscriber has in hand.
func (a *AMQP) Unhandled(_ context.Context, group, destination string) (unhandled int64, err error) {
	err = a.withQueue(groupQueue(group)(destination), func(_ *amqp091.Channel, ready int) error {
		unhandled = int64(ready)
		return nil
	})
	return unhandled, err
}

func (a *AMQP) withQueue(name string, do func(channel *amqp091.Channel, ready int) error) error {
	connection, err := a.connect()
	if err != nil {
		return err
	}
	channel, err := connection.Channel()
	if err != nil {
		return fmt.Errorf("queue %s: %w", name, err)
	}
	defer channel.Close()
	queue, err := channel.QueueDeclarePassive(name, true, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("queue %s: %w", name, err)
	}
	if err := do(channel, queue.Messages); err != nil {
		return fmt.Errorf("queue %s: %w", name, err)
	}
	return nil
}

package chaos_test

import (
	"context"
	"fmt"
	"time"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// rabbit is the ledger's RabbitMQ, but for the subscriber: the race detector finds
// watermill-amqp's at fault when it loses its connection.
type rabbit struct {
	*ledger.AMQP

	consumers string // the URI that they connect to
}

// Subscriber implements ledger.Broker.
func (r *rabbit) Subscriber(group string) (message.Subscriber, error) {
	return &amqpSubscriber{uri: r.consumers, group: group}, nil
}

// amqpSubscriber hands out one message at a time, and connects again for ever. Its queues are
// those of watermill-amqp's.
type amqpSubscriber struct {
	subscriptions

	uri, group string
}

func (s *amqpSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	queue := topic + "_" + s.group
	err := onChannel(s.uri, func(channel *amqp091.Channel) error {
		if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			return err
		}
		return channel.QueueBind(queue, "", topic, false, nil)
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	return s.add(ctx, func(ctx context.Context, messages chan<- *message.Message) {
		for ctx.Err() == nil {
			_ = s.consume(ctx, queue, messages) // whatever ends it
			_ = pause(ctx, 100*time.Millisecond)
		}
	}), nil
}

func (s *amqpSubscriber) consume(ctx context.Context, queue string, messages chan<- *message.Message) error {
	return onChannel(s.uri, func(channel *amqp091.Channel) error {
		if err := channel.Qos(1, 0, false); err != nil {
			return err
		}
		deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for {
			select {
			case d, ok := <-deliveries:
				if !ok {
					return amqp091.ErrClosed
				}
				if err := handOverDelivery(ctx, d, messages); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
}

func handOverDelivery(ctx context.Context, d amqp091.Delivery, messages chan<- *message.Message) error {
	msg, err := wmamqp.DefaultMarshaler{}.Unmarshal(d)
	if err != nil {
		return err
	}
	switch acked, err := handOver(ctx, msg, messages); {
	case err != nil:
		return err // the broker hands it out again
	case acked:
		return d.Ack(false)
	default:
		return d.Nack(false, true)
	}
}

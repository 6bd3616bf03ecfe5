package main

import (
	"context"
	"errors"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
)

// rabbitMQRecords are the messages of the run's audit queues. They stay there: what is
// read is not acked.
type rabbitMQRecords struct {
	addresses  servers.Addresses
	connection *amqp091.Connection
	counting   *amqp091.Channel
}

func openRabbitMQRecords(addresses servers.Addresses) (*rabbitMQRecords, error) {
	connection, err := amqp091.Dial(string(addresses.Broker.AMQP.URI))
	if err != nil {
		return nil, err
	}
	channel, err := connection.Channel()
	if err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return &rabbitMQRecords{addresses: addresses, connection: connection, counting: channel}, nil
}

func (*rabbitMQRecords) keyName() string { return "message-id" }

func (r *rabbitMQRecords) close() error { return r.connection.Close() }

func (r *rabbitMQRecords) count(_ context.Context, destination string) (int64, error) {
	queue, err := r.counting.QueueDeclarePassive(r.addresses.AuditQueue(destination), true, false, false, false, nil)
	return int64(queue.Messages), err
}

func (r *rabbitMQRecords) read(ctx context.Context, destination string, take func(id, key string)) (err error) {
	remaining, err := r.count(ctx, destination)
	if err != nil {
		return err
	}
	channel, err := r.connection.Channel()
	if err != nil {
		return err
	}
	// With the channel, all messages go back to their places in the queue.
	defer func() { err = errors.Join(err, channel.Close()) }()
	const autoAck, exclusive = false, true
	messages, err := channel.ConsumeWithContext(ctx, r.addresses.AuditQueue(destination), "", autoAck, exclusive, false, false, nil)
	if err != nil {
		return err
	}
	for ; remaining > 0; remaining-- {
		select {
		case message, ok := <-messages:
			if !ok {
				return amqp091.ErrClosed
			}
			id, _ := message.Headers[wmamqp.DefaultMessageUUIDHeaderKey].(string)
			take(id, message.MessageId)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

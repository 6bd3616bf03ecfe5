package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
)

// FarEnd is a broker where the sides send to, and where what arrived is counted.
type FarEnd interface {
	// Name is a word for people.
	Name() string
	// NewDestination makes a queue or a topic.
	NewDestination(ctx context.Context) (string, error)
	// Remove removes a queue or a topic, with what is in it.
	Remove(ctx context.Context, destination string) error
	// Count reads all that is in the destination.
	Count(ctx context.Context, destination string, tally *compare.Tally) error
	// Publisher is the one of this project.
	Publisher() (Publisher, error)
	// Watermills is Watermill's, set to lose nothing; tuned, also to be fast.
	Watermills(tuned bool) (message.Publisher, error)
}

// RabbitMQ is the broker of AMQP_URI.
func (r Rig) RabbitMQ() FarEnd { return rabbitMQ{uri: r.AMQPURI} }

type rabbitMQ struct{ uri string }

func (rabbitMQ) Name() string { return "RabbitMQ" }

func (r rabbitMQ) Publisher() (Publisher, error) {
	return amqp.NewPublisher(amqp.NewQueueConfig(r.uri), nil)
}

func (r rabbitMQ) Watermills(tuned bool) (message.Publisher, error) {
	config := wmamqp.NewDurableQueueConfig(r.uri)
	config.Publish.ConfirmDelivery = true
	if tuned {
		config.Publish.ChannelPoolSize = 1 // otherwise it opens a channel for each message
	}
	return wmamqp.NewPublisher(config, nopLogger)
}

func (r rabbitMQ) NewDestination(context.Context) (string, error) {
	name := NewName()
	return name, r.with(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(name, true, false, false, false, nil)
		return err
	})
}

func (r rabbitMQ) with(use func(channel *amqp091.Channel) error) error {
	connection, err := amqp091.Dial(r.uri)
	if err != nil {
		return fmt.Errorf("RabbitMQ: %w", err)
	}
	channel, err := connection.Channel()
	if err == nil {
		err = use(channel)
	}
	if err != nil {
		err = fmt.Errorf("RabbitMQ: %w", err)
	}
	return errors.Join(err, connection.Close())
}

// Count takes everything out of the queue: as much as it says to hold, and no more comes.
func (r rabbitMQ) Count(ctx context.Context, queue string, tally *compare.Tally) error {
	return r.with(func(channel *amqp091.Channel) error {
		state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			return err
		}
		deliveries, err := channel.ConsumeWithContext(ctx, queue, "", true, false, false, false, nil)
		if err != nil {
			return err
		}
		return count(ctx, deliveries, state.Messages, tally)
	})
}

func (r rabbitMQ) Remove(_ context.Context, queue string) error {
	return r.with(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDelete(queue, false, false, false)
		return err
	})
}

func count(ctx context.Context, deliveries <-chan amqp091.Delivery, messages int, tally *compare.Tally) error {
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	for n := range messages {
		select {
		case delivery, ok := <-deliveries:
			if !ok {
				return fmt.Errorf("the queue ended after %d of %d messages", n, messages)
			}
			msg, err := amqp.Marshaler{}.Unmarshal(delivery)
			if err != nil {
				return err
			}
			tally.Add(msg.UUID)
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return fmt.Errorf("only %d of %d messages came out of the queue", n, messages)
		}
	}
	return nil
}

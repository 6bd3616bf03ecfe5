package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const defaultPoisonTimeout = 30 * time.Second

// PoisonPublisher decorates the publisher of a poison queue, for Watermill's
// PoisonQueue and PoisonQueueWithFilter: it publishes under a context that keeps the
// values of the message's, but not its end, and ends after timeout (zero: 30 seconds).
//
// Watermill publishes a poisoned message under its own context. A Timeout middleware has
// ended that by then, and a publisher that honours it, as kafka.Publisher and
// amqp.Publisher do, would refuse the message: it would not be put aside but delivered
// again, for ever.
//
// The publisher must not be an outbox.Publisher: a poisoned message has no transaction.
// Close closes it. The result is as safe for concurrent use as the publisher.
func PoisonPublisher(publisher message.Publisher, timeout time.Duration) message.Publisher {
	if timeout <= 0 {
		timeout = defaultPoisonTimeout
	}
	return poisonPublisher{Publisher: publisher, timeout: timeout}
}

type poisonPublisher struct {
	message.Publisher

	timeout time.Duration
}

// Publish gives each message the whole timeout, as its own context would. It publishes
// copies: the message itself is still to be acked or nacked under its own context.
func (p poisonPublisher) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if err := p.publishOne(topic, msg); err != nil {
			return err
		}
	}
	return nil
}

func (p poisonPublisher) publishOne(topic string, msg *message.Message) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(msg.Context()), p.timeout)
	defer cancel()
	detached := msg.Copy()
	detached.SetContext(ctx)
	return p.Publisher.Publish(topic, detached)
}

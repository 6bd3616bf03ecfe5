package middleware

import (
	"context"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

const (
	defaultPoisonTimeout = 30 * time.Second
	maxReasonBytes       = 4 << 10
)

// PoisonPublisher decorates the publisher of a poison queue, for Watermill's
// PoisonQueue and PoisonQueueWithFilter: it publishes under a context that keeps the
// values of the message's, but not its end, and ends after timeout (zero: 30 seconds).
//
// Watermill publishes a poisoned message under its own context. A Timeout middleware has
// ended that by then, and a publisher that honours it, as kafka.Publisher and
// amqp.Publisher do, would refuse the message: it would not be put aside but delivered
// again, for ever.
//
// The reason that Watermill writes into the metadata (reason_poisoned) is cut to 4 KiB, and
// what is not UTF-8, or NUL, is replaced: an error that quotes a payload would have
// RabbitMQ or Postgres refuse the message, with the same end.
//
// The publisher must not be an outbox.Publisher: a poisoned message has no transaction. One
// that writes to the outbox in a transaction of its own can put no message aside whose id
// is refused (empty, longer than outbox.MaxIDBytes, not UTF-8 or with a NUL byte);
// amqp.Publisher none whose id is too long. Close closes it. The result is as safe for concurrent use as the publisher.
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
	if reason, ok := detached.Metadata[wm.ReasonForPoisonedKey]; ok {
		detached.Metadata.Set(wm.ReasonForPoisonedKey, fitReason(reason))
	}
	return p.Publisher.Publish(topic, detached)
}

// fitReason makes a reason that every publisher takes.
func fitReason(reason string) string {
	const replacement, ellipsis = "\uFFFD", "…"
	fit := reason[:min(len(reason), maxReasonBytes)]
	fit = strings.ToValidUTF8(strings.ReplaceAll(fit, "\x00", replacement), replacement)
	if len(reason) <= maxReasonBytes && len(fit) <= maxReasonBytes {
		return fit
	}
	fit = fit[:min(len(fit), maxReasonBytes-len(ellipsis))]
	return strings.ToValidUTF8(fit, "") + ellipsis
}

package amqp

import (
	"errors"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder"
)

var (
	errUnroutable = errors.New("no queue took the message")
	errRejected   = errors.New("the broker rejected the message, as a full queue does")
	errUnanswered = errors.New("the broker did not confirm the message in time")
)

// classify sorts what closed a channel or prevented it from opening (AMQP 0-9-1
// specification, "Reply Codes"). A channel's own error says something of the
// destination; what ends the connection says nothing of it.
func classify(err error) error {
	if reason, ok := errors.AsType[*amqp091.Error](err); ok {
		switch reason.Code {
		case amqp091.NotFound, amqp091.AccessRefused, amqp091.PreconditionFailed, amqp091.ResourceLocked:
			return forwarder.DestinationUnavailable(err)
		}
	}
	return forwarder.Unavailable(err)
}

// refusal returns the reason for which the broker closed a channel over a message, such
// as one that is too large; nil where no message is to blame.
func refusal(err error) *amqp091.Error {
	reason, ok := errors.AsType[*amqp091.Error](err)
	if !ok || reason.Code != amqp091.PreconditionFailed || errors.Is(err, errPreparing) {
		return nil
	}
	return reason
}

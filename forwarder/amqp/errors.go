package amqp

import (
	"errors"
	"slices"

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

// closedOver returns the reason for which the broker closed a channel after messages were
// sent on it, if it has one of the codes.
func closedOver(err error, codes ...int) *amqp091.Error {
	reason, ok := errors.AsType[*amqp091.Error](err)
	if !ok || !slices.Contains(codes, reason.Code) || errors.Is(err, errPreparing) {
		return nil
	}
	return reason
}

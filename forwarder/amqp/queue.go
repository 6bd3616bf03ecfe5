package amqp

import (
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// queueType says what the arguments of a queue ask for, in words for an operator.
func queueType(arguments amqp091.Table) string {
	if asked, ok := arguments[amqp091.QueueTypeArg]; ok {
		return fmt.Sprintf("of type %v", asked)
	}
	return "of the default type, classic"
}

// errOtherProperties explains the broker's words, which speak of "none" where a queue was
// declared without a type.
var errOtherProperties = errors.New("a queue or exchange of that name exists with other properties, or the broker does not have these" +
	" (where it says none, that is the default: for x-queue-type, classic)")

// explained adds that to the refusal of a declaration.
func explained(err error) error {
	if reason, ok := errors.AsType[*amqp091.Error](err); ok && reason.Code == amqp091.PreconditionFailed {
		return fmt.Errorf("%w: %w", errOtherProperties, err)
	}
	return err
}

// losesMessages lists arguments of a queue with which the broker would throw messages
// away.
func losesMessages(arguments amqp091.Table) (errs []error) {
	if _, ok := arguments[amqp091.QueueTTLArg]; ok {
		errs = append(errs, errors.New("x-expires: the queue would be deleted, and its messages with it"))
	}
	if _, kept := arguments["x-dead-letter-exchange"]; !kept {
		for _, name := range []string{"x-delivery-limit", amqp091.QueueMessageTTLArg} {
			if _, ok := arguments[name]; ok {
				errs = append(errs, fmt.Errorf("%s without x-dead-letter-exchange: messages would be dropped", name))
			}
		}
	}
	overflow := arguments[amqp091.QueueOverflowArg]
	if overflow == amqp091.QueueOverflowRejectPublish || overflow == amqp091.QueueOverflowRejectPublishDLX {
		return errs
	}
	for _, name := range []string{amqp091.QueueMaxLenArg, amqp091.QueueMaxLenBytesArg} {
		if _, ok := arguments[name]; ok {
			errs = append(errs, fmt.Errorf("%s without x-overflow reject-publish: a full queue would drop its oldest messages", name))
		}
	}
	return errs
}

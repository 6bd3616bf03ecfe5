package middleware

import (
	"errors"
	"fmt"
)

var (
	// ErrPermanent says that a further delivery of the same message will fail in the
	// same way. Every permanent error of the middleware wraps it, together with its
	// cause; a handler may wrap it in its own errors to the same effect. See
	// IsPermanent.
	ErrPermanent = errors.New("middleware: permanent")
	// ErrNoEventID says that the message has no UUID, or that the EventID function
	// returned an empty one. It wraps ErrPermanent.
	ErrNoEventID = fmt.Errorf("%w: the message has no event id", ErrPermanent)
	// ErrNoConsumer says that InboxConfig.Consumer is not set and the message did not
	// come through a router, whose handler's name would stand in. It wraps
	// ErrPermanent.
	ErrNoConsumer = fmt.Errorf("%w: no consumer is configured, and the message has no handler name", ErrPermanent)
	// ErrConsumerShared says that two handlers take messages from one topic through an
	// Inbox with one InboxConfig.Consumer: what the first has handled would count as
	// handled by the second. Leave Consumer empty, or make an Inbox for each handler. It
	// wraps ErrPermanent.
	ErrConsumerShared = fmt.Errorf("%w: two handlers share one consumer", ErrPermanent)
	// ErrTxEnded says that the handler ended the transaction itself. If it committed, its
	// effects and the key are there, and the messages that it returned are not; a further
	// delivery is dropped. It wraps ErrPermanent, and the handler's error. (A handler that
	// rolls back and returns an error gets that error as it is.)
	ErrTxEnded = fmt.Errorf("%w: the handler ended the transaction", ErrPermanent)
	// ErrNoOutbox says that the handler returned messages and InboxConfig.Outbox is not
	// set. The router would publish them after the commit, where a failure loses them.
	// Nothing was committed. It wraps ErrPermanent.
	ErrNoOutbox = fmt.Errorf("%w: the handler returned messages, and no outbox is configured", ErrPermanent)
	// ErrNoDestination says that the handler returned messages and has no publish topic
	// in its router. Nothing was committed. It wraps ErrPermanent.
	ErrNoDestination = fmt.Errorf("%w: the handler returned messages, and has no publish topic", ErrPermanent)
	// ErrInvalidConfig says what is wrong with an InboxConfig.
	ErrInvalidConfig = errors.New("middleware: invalid config")
)

// IsPermanent reports whether err wraps ErrPermanent. It fits Watermill's
// PoisonQueueWithFilter as it is, and Retry through its ShouldRetry.
func IsPermanent(err error) bool { return errors.Is(err, ErrPermanent) }

// permanent marks an error of another package.
func permanent(err error) error { return fmt.Errorf("%w: %w", ErrPermanent, err) }

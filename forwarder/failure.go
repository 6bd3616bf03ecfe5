package forwarder

import (
	"errors"
	"fmt"
)

var (
	// ErrRefused says that this message cannot be sent as it is, while others can.
	ErrRefused = errors.New("forwarder: message refused")
	// ErrPermanent says that this message can never be sent, however often it is tried. It
	// is an ErrRefused too.
	ErrPermanent = errors.New("forwarder: no further attempt can help")
	// ErrUnavailable says that the broker is away; nothing is wrong with the message.
	ErrUnavailable = errors.New("forwarder: broker unavailable")
	// ErrDestinationUnavailable says that the destination is missing or closed to us,
	// while the broker answers.
	ErrDestinationUnavailable = errors.New("forwarder: destination unavailable")
	// ErrRouteUnavailable says that nobody takes this message for now, while the destination
	// takes others.
	ErrRouteUnavailable = errors.New("forwarder: no route for the message")
	// ErrKeyHeld says that the message was not sent, because an earlier one of its unit
	// failed.
	ErrKeyHeld = errors.New("forwarder: not sent, an earlier message of its unit failed")
)

// Refused marks err as the refusal of one message: it is tried again with a growing
// delay until MaxAttempts are spent, holds back its own unit, and stops nothing else. A
// nil err stays nil.
func Refused(err error) error { return mark(ErrRefused, err) }

// Permanent marks err as the refusal of one message that no further attempt can help: it
// goes to the dead letters at once. A nil err stays nil.
func Permanent(err error) error { return Refused(mark(ErrPermanent, err)) }

// Unavailable marks err as the broker's absence: the batch is released, and the
// forwarder waits before it tries again. A nil err stays nil.
func Unavailable(err error) error { return mark(ErrUnavailable, err) }

// DestinationUnavailable marks err as the absence of one destination: only its
// messages wait. A nil err stays nil.
func DestinationUnavailable(err error) error { return mark(ErrDestinationUnavailable, err) }

// RouteUnavailable marks err as the absence of a way for one message, which chooses it
// itself: a routing key that no queue is bound with. Only its unit waits, with a growing
// delay, and no attempt is spent. A nil err stays nil.
func RouteUnavailable(err error) error { return mark(ErrRouteUnavailable, err) }

func mark(kind, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// classified says whether err tells of itself what kind of failure it is.
func classified(err error) bool {
	for _, kind := range []error{ErrRefused, ErrUnavailable, ErrDestinationUnavailable, ErrRouteUnavailable, ErrKeyHeld} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

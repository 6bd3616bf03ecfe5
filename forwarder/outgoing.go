package forwarder

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Outgoing is a message on its way from the outbox to the broker.
type Outgoing struct {
	// Destination is the topic, queue or exchange, as the producer named it.
	Destination string
	// PartitionKey is the effective one: the row's, or else the event id. Never empty.
	PartitionKey string
	// Message carries the event id as UUID, the payload and the metadata.
	Message *message.Message
}

// Unit is the unit of order: within it, messages are first delivered in the order of
// their commits.
type Unit struct{ Destination, PartitionKey string }

// Unit returns the unit of order that the message belongs to.
func (o Outgoing) Unit() Unit {
	return Unit{Destination: o.Destination, PartitionKey: o.PartitionKey}
}

// BatchPublisher is what a broker implements to take a whole batch and to confirm it
// message by message. A plain message.Publisher works too, one message at a time.
//
// PublishBatch returns one result for each message, in the order given: nil only
// after the broker confirmed that very message; otherwise Refused(err),
// Unavailable(err), DestinationUnavailable(err), RouteUnavailable(err), or ErrKeyHeld for a message that was
// not sent because an earlier one of its unit failed. It must never send a message of
// a unit after an earlier one of that unit failed: Waves does this for any
// implementation. It returns soon after ctx ends. It is called from several
// goroutines at once.
type BatchPublisher interface {
	PublishBatch(ctx context.Context, msgs []Outgoing) []error
}

package outbox

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/schema"
)

const (
	// MaxIDBytes is the longest event id: AMQP carries a message-id as a short string
	// (AMQP 0-9-1 specification, 4.2.5.3), and the table has the same limit.
	MaxIDBytes = 255
	// MaxDestinationBytes is the longest destination, for the same reason.
	MaxDestinationBytes = 255
	// MaxPartitionKeyBytes is the longest partition key.
	MaxPartitionKeyBytes = 1024
	// MaxPayloadBytes is the largest payload, 128 MiB. Brokers usually take less: Kafka
	// 1 MiB by default.
	MaxPayloadBytes = 128 << 20
	// MaxMetadataKeyBytes is the longest metadata key; see schema.MaxMetadataKeyBytes.
	MaxMetadataKeyBytes = schema.MaxMetadataKeyBytes
	// MaxMetadataBytes is how much the metadata of a message may take, as JSON; see
	// schema.MaxMetadataBytes.
	MaxMetadataBytes = schema.MaxMetadataBytes
)

func validateDestination(destination string) error {
	switch rule := schema.BrokenTextRule(destination); {
	case destination == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidDestination)
	case len(destination) > MaxDestinationBytes:
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrInvalidDestination, len(destination), MaxDestinationBytes)
	case rule != "":
		return fmt.Errorf("%w: %q %s", ErrInvalidDestination, destination, rule)
	}
	return nil
}

func validateID(msg *message.Message) error {
	switch {
	case msg.UUID == "":
		return fmt.Errorf("%w: its UUID (the event id) is empty", ErrInvalidMessage)
	case len(msg.UUID) > MaxIDBytes:
		return fmt.Errorf("%w: its UUID (the event id) has %d bytes, at most %d are allowed", ErrInvalidMessage, len(msg.UUID), MaxIDBytes)
	}
	if rule := schema.BrokenTextRule(msg.UUID); rule != "" {
		return fmt.Errorf("%w: its UUID (the event id) %q %s", ErrInvalidMessage, msg.UUID, rule)
	}
	return nil
}

func validatePartitionKey(key string) error {
	if len(key) > MaxPartitionKeyBytes {
		return fmt.Errorf("%w: its partition key has %d bytes, at most %d are allowed", ErrInvalidMessage, len(key), MaxPartitionKeyBytes)
	}
	if rule := schema.BrokenTextRule(key); rule != "" {
		return fmt.Errorf("%w: its partition key %q %s", ErrInvalidMessage, key, rule)
	}
	return nil
}

func validateSize(what string, size, allowed int) error {
	if size > allowed {
		return fmt.Errorf("%w: its %s has %d bytes, at most %d are allowed", ErrInvalidMessage, what, size, allowed)
	}
	return nil
}

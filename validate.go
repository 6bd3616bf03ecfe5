package outbox

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
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
	// MaxMetadataKeyBytes is the longest metadata key: AMQP carries the names of headers as
	// short strings.
	MaxMetadataKeyBytes = 255
	// MaxMetadataBytes is how much the metadata of a message may take, as JSON, 120 KiB:
	// RabbitMQ carries all headers in one frame, which has 128 KiB by default.
	MaxMetadataBytes = 120 << 10
)

// shownBytes is how much of a key that is too long an error repeats.
const shownBytes = 40

func validateDestination(destination string) error {
	switch rule := brokenTextRule(destination); {
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
	if rule := brokenTextRule(msg.UUID); rule != "" {
		return fmt.Errorf("%w: its UUID (the event id) %q %s", ErrInvalidMessage, msg.UUID, rule)
	}
	return nil
}

func validateMetadata(metadata message.Metadata) error {
	for name, value := range metadata {
		if use := reservedFor(name); use != "" {
			return fmt.Errorf("%w: the metadata key %q is reserved: %s", ErrInvalidMessage, name, use)
		}
		if len(name) > MaxMetadataKeyBytes {
			return fmt.Errorf("%w: a metadata key has %d bytes, at most %d are allowed: %q…",
				ErrInvalidMessage, len(name), MaxMetadataKeyBytes, strings.ToValidUTF8(name[:shownBytes], ""))
		}
		if rule := brokenTextRule(name); rule != "" {
			return fmt.Errorf("%w: the metadata key %q %s", ErrInvalidMessage, name, rule)
		}
		if rule := brokenTextRule(value); rule != "" {
			return fmt.Errorf("%w: the value of metadata key %q %s", ErrInvalidMessage, name, rule)
		}
	}
	return nil
}

func validatePartitionKey(key string) error {
	if len(key) > MaxPartitionKeyBytes {
		return fmt.Errorf("%w: its partition key has %d bytes, at most %d are allowed", ErrInvalidMessage, len(key), MaxPartitionKeyBytes)
	}
	if rule := brokenTextRule(key); rule != "" {
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

// brokenTextRule says why Postgres could not store s as text; json.Marshal would
// replace bad bytes in silence.
func brokenTextRule(s string) string {
	if !utf8.ValidString(s) {
		return "is not valid UTF-8"
	}
	if strings.IndexByte(s, 0) >= 0 {
		return "holds a NUL byte"
	}
	return ""
}

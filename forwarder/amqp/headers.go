package amqp

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// uuidHeader is where watermill-amqp's marshaler keeps the UUID, over whatever stood
// there.
const uuidHeader = "_watermill_message_uuid"

// routingHeaders are lists of further routing keys. RabbitMQ closes the channel over
// anything else in them, and with it hits the other messages on their way.
var routingHeaders = []string{"CC", "BCC"}

// isBrokersOwn says that RabbitMQ itself writes the header: over what stood there, or
// with a meaning for its routing. Package outbox refuses such metadata.
func isBrokersOwn(name string) bool {
	switch name {
	case "CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count", "x-stream-offset":
		return true
	default:
		return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
	}
}

var (
	errReserved    = errors.New("the metadata key is reserved for the event id")
	errRoutingKeys = errors.New("RabbitMQ wants a list of routing keys in the header")
)

// checkHeaders looks for metadata that the marshaler has overwritten, and for headers
// that RabbitMQ would close the channel for.
func checkHeaders(headers amqp091.Table, msg *message.Message) error {
	for name, value := range msg.Metadata {
		if name == uuidHeader || (headers[name] == msg.UUID && value != msg.UUID) {
			return fmt.Errorf("%w: %q", errReserved, name)
		}
	}
	for _, name := range routingHeaders {
		value, ok := headers[name]
		if _, isList := value.([]any); ok && !isList {
			return fmt.Errorf("%w %s: it closes the channel over text", errRoutingKeys, name)
		}
	}
	if err := headers.Validate(); err != nil {
		return fmt.Errorf("headers: %w", err)
	}
	return nil
}

package amqp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// BrokerHeaderPrefix begins the metadata keys under which Marshaler.Unmarshal puts what
// RabbitMQ itself has written on a message, as "_rabbitmq_x-death".
const BrokerHeaderPrefix = "_rabbitmq_"

// Marshaler is watermill-amqp's DefaultMarshaler, and the same on the wire, but it reads
// every delivery. DefaultMarshaler fails on a header that is no text, and watermill-amqp's
// subscriber then gives the message back to the queue, over and over: so it is with each
// message that was dead-lettered (x-death), or that comes from a quorum queue
// (x-delivery-count). Give it to subscribers:
//
//	config := wmamqp.NewDurableQueueConfig(uri)
//	config.Marshaler = amqp.Marshaler{}
//	subscriber, err := wmamqp.NewSubscriber(config, logger)
//
// NewQueueConfig and its like have it already. The zero value works.
type Marshaler struct {
	// DefaultMarshaler holds the settings, all of them optional.
	amqp.DefaultMarshaler
}

var _ amqp.Marshaler = Marshaler{}

// Unmarshal makes a message of any delivery. It never fails.
//
// The UUID is what stands in the header "_watermill_message_uuid", or in the one that
// MessageUUIDHeaderKey names; without it, the message-id; without that, it is empty. Each
// other header is metadata: text as it is, bytes as text, everything else as JSON. (Times
// are in RFC 3339 and UTC, infinite numbers are text, void is null.)
//
// Headers that RabbitMQ writes (x-death, x-first-death-*, x-last-death-*,
// x-delivery-count, x-acquired-count, x-stream-offset, CC) tell of this one delivery, and
// outbox.Publisher refuses metadata of their names. They get the prefix
// BrokerHeaderPrefix, so that a handler may pass a message on with all its metadata.
func (m Marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	uuidKey := m.MessageUUIDHeaderKey
	if uuidKey == "" {
		uuidKey = amqp.DefaultMessageUUIDHeaderKey
	}
	uuid := delivery.MessageId
	if value, ok := delivery.Headers[uuidKey]; ok {
		uuid = textOf(value)
	}
	msg := message.NewMessage(uuid, delivery.Body)
	for name, value := range delivery.Headers {
		if name != uuidKey && !isBrokersOwn(name) {
			msg.Metadata.Set(name, textOf(value))
		}
	}
	for name, value := range delivery.Headers { // over those of an earlier delivery
		if isBrokersOwn(name) {
			msg.Metadata.Set(BrokerHeaderPrefix+name, textOf(value))
		}
	}
	return msg, nil
}

func textOf(value any) string {
	value = plain(value)
	if text, ok := value.(string); ok {
		return text
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Sprint(value) // of no type that AMQP has
	}
	return strings.TrimSuffix(encoded.String(), "\n")
}

// plain is a value of a header in types that JSON has.
func plain(value any) any {
	switch v := value.(type) {
	case amqp091.Table:
		object := make(map[string]any, len(v))
		for name, element := range v {
			object[name] = plain(element)
		}
		return object
	case []any:
		list := make([]any, len(v))
		for i, element := range v {
			list[i] = plain(element)
		}
		return list
	case []byte:
		return string(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp091.Decimal:
		return json.Number(decimalText(v))
	case float32:
		return finite(v)
	case float64:
		return finite(v)
	default:
		return v
	}
}

func finite[F float32 | float64](number F) any {
	if f := float64(number); math.IsInf(f, 0) || math.IsNaN(f) {
		return fmt.Sprint(f)
	}
	return number
}

// decimalText is exact: the value with so many decimal places.
func decimalText(d amqp091.Decimal) string {
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.Scale)), nil)
	return new(big.Rat).SetFrac(big.NewInt(int64(d.Value)), power).FloatString(int(d.Scale))
}

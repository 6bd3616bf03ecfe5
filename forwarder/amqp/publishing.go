package amqp

import (
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder"
)

const (
	// maxShortStringBytes is the longest short string (AMQP 0-9-1 specification,
	// 4.2.5.3). A longer one ends the connection, for all.
	maxShortStringBytes = 255
	// headerFrameBytes is what a header frame holds besides its properties, rounded up.
	headerFrameBytes = 64
)

var (
	errShortString = errors.New("too long for AMQP")
	errHeadersSize = errors.New("the metadata is too large for one AMQP frame")
)

// publishing brings a message into the form of the client library and checks what the
// library or the broker would cut off or close the connection for. Its errors are refusals:
// permanent ones, but for the marshaler's own, which may ask others.
func (c *connection) publishing(msg forwarder.Outgoing) (publishing amqp091.Publishing, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = forwarder.Refused(fmt.Errorf("marshal: panic: %v", r))
		}
	}()
	publishing, err = c.config.AMQP.Marshaler.Marshal(msg.Message)
	if err != nil {
		return publishing, forwarder.Refused(fmt.Errorf("marshal: %w", err))
	}
	if err := requirePersistent(publishing); err != nil {
		return publishing, forwarder.Refused(err)
	}
	publishing.MessageId = msg.Message.UUID
	if err := checkHeaders(publishing.Headers, msg.Message); err != nil {
		return publishing, forwarder.Permanent(err)
	}
	return publishing, forwarder.Permanent(checkFrame(publishing, c.amqp.Config.FrameSize))
}

// checkFrame looks for what would end the connection: the properties of a message must
// fit into one frame, and short strings have their bound.
func checkFrame(publishing amqp091.Publishing, frameSize int) error {
	size := headerFrameBytes
	for name, value := range map[string]string{
		"content type": publishing.ContentType, "content encoding": publishing.ContentEncoding,
		"correlation id": publishing.CorrelationId, "reply-to": publishing.ReplyTo, "expiration": publishing.Expiration,
		"message id": publishing.MessageId, "type": publishing.Type, "user id": publishing.UserId, "app id": publishing.AppId,
	} {
		if len(value) > maxShortStringBytes {
			return fmt.Errorf("the %s is %w: %d bytes, at most %d are allowed", name, errShortString, len(value), maxShortStringBytes)
		}
		size += 1 + len(value)
	}
	tableSize, err := sizeOfTable(publishing.Headers)
	if err != nil {
		return err
	}
	if size += tableSize; frameSize > 0 && size > frameSize {
		return fmt.Errorf("%w: about %d bytes, a frame has %d", errHeadersSize, size, frameSize)
	}
	return nil
}

func sizeOfTable(table amqp091.Table) (int, error) {
	size := 4
	for name, value := range table {
		if len(name) > maxShortStringBytes {
			return 0, fmt.Errorf("a metadata key is %w: %q has %d bytes, at most %d are allowed",
				errShortString, name, len(name), maxShortStringBytes)
		}
		valueSize, err := sizeOf(value)
		if err != nil {
			return 0, err
		}
		size += 1 + len(name) + valueSize
	}
	return size, nil
}

// sizeOf is what a value of a table takes, with its type.
func sizeOf(value any) (int, error) {
	switch v := value.(type) {
	case string:
		return 5 + len(v), nil
	case []byte:
		return 5 + len(v), nil
	case amqp091.Table:
		size, err := sizeOfTable(v)
		return 1 + size, err
	case []any:
		size := 5
		for _, element := range v {
			elementSize, err := sizeOf(element)
			if err != nil {
				return 0, err
			}
			size += elementSize
		}
		return size, nil
	default:
		return 9, nil // numbers, times and truth values
	}
}

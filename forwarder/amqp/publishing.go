package amqp

import (
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder"
)

const (
	// maxShortStringBytes is the longest short string (AMQP 0-9-1 specification,
	// 4.2.5.3); the client library would cut off the rest.
	maxShortStringBytes = 255
	// headerMargin stands for what a header frame holds besides the table of headers.
	headerMargin = 4096
	// headerFieldBytes is what a field of the table takes besides its name and value.
	headerFieldBytes = 6
)

var (
	errHeaderName  = errors.New("a metadata key is too long for AMQP")
	errHeadersSize = errors.New("the metadata is too large for one AMQP frame")
	errReserved    = errors.New("the metadata key is reserved for the event id")
)

// publishing brings a message into the form of the client library and checks what the
// library or the broker would cut off or close the connection for.
func (c *connection) publishing(msg forwarder.Outgoing) (publishing amqp091.Publishing, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("marshal: panic: %v", r)
		}
	}()
	if _, ok := msg.Message.Metadata[uuidHeader]; ok {
		return publishing, fmt.Errorf("%w: %q", errReserved, uuidHeader)
	}
	publishing, err = c.config.AMQP.Marshaler.Marshal(msg.Message)
	if err != nil {
		return publishing, fmt.Errorf("marshal: %w", err)
	}
	if err := requirePersistent(publishing); err != nil {
		return publishing, err
	}
	publishing.MessageId = msg.Message.UUID
	if err := publishing.Headers.Validate(); err != nil {
		return publishing, fmt.Errorf("headers: %w", err)
	}
	return publishing, checkHeaders(publishing.Headers, c.amqp.Config.FrameSize)
}

// uuidHeader is where watermill-amqp's marshaler keeps the UUID, over whatever stood
// there.
const uuidHeader = "_watermill_message_uuid"

func checkHeaders(headers amqp091.Table, frameSize int) error {
	size := headerMargin
	for name, value := range headers {
		if len(name) > maxShortStringBytes {
			return fmt.Errorf("%w: %q has %d bytes, at most %d are allowed", errHeaderName, name, len(name), maxShortStringBytes)
		}
		size += headerFieldBytes + len(name)
		if text, ok := value.(string); ok {
			size += len(text)
		}
	}
	if frameSize > 0 && size > frameSize {
		return fmt.Errorf("%w: about %d bytes, a frame has %d", errHeadersSize, size, frameSize)
	}
	return nil
}

package inbox

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/watermill-outbox/outbox"
)

// MaxConsumerBytes is the longest name of a consumer.
const MaxConsumerBytes = 255

// Key says which event a consumer has handled.
type Key struct {
	// Consumer is the scope within which an event is handled once. Two consumers with
	// different names both handle it, also where they share one table. 1 to 255 bytes
	// of UTF-8 without NUL.
	Consumer string
	// EventID identifies the event, under the same rules as Consumer. The outbox sends
	// it as the id of the broker's message.
	EventID string
	// Digest stands for the event's content; Digest computes it. It is stored with the
	// key, and a later delivery with another digest is ErrIDReused. Empty: content is
	// not compared.
	Digest []byte
}

// Validate reports the first rule that the key breaks. The error wraps ErrInvalidKey.
func (k Key) Validate() error {
	if err := validateText("consumer", k.Consumer, MaxConsumerBytes); err != nil {
		return err
	}
	return validateText("event id", k.EventID, outbox.MaxIDBytes)
}

func validateText(what, value string, maxBytes int) error {
	switch {
	case value == "":
		return fmt.Errorf("%w: the %s is empty", ErrInvalidKey, what)
	case len(value) > maxBytes:
		return fmt.Errorf("%w: the %s has %d bytes, at most %d are allowed", ErrInvalidKey, what, len(value), maxBytes)
	case !utf8.ValidString(value):
		return fmt.Errorf("%w: the %s %q is not valid UTF-8", ErrInvalidKey, what, value)
	case strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("%w: the %s %q holds a NUL byte", ErrInvalidKey, what, value)
	}
	return nil
}

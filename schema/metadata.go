package schema

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// MaxMetadataKeyBytes is the longest metadata key: AMQP carries the names of headers as
	// short strings.
	MaxMetadataKeyBytes = 255
	// MaxMetadataBytes is how much the metadata of a message may take, as JSON, 120 KiB:
	// RabbitMQ carries all headers in one frame, which has 128 KiB by default.
	MaxMetadataBytes = 120 << 10
)

// EncodeMetadata returns the metadata as the column of that name takes it, or the rule
// that it breaks: what Postgres cannot store, a broker cannot carry, or would take for
// its own. The rules are the same for all brokers, since a message may go to another
// one tomorrow, by a change of configuration. (json.Marshal alone would replace bad bytes
// in silence.)
func EncodeMetadata(metadata message.Metadata) (encoded, rule string) {
	if len(metadata) == 0 {
		return "{}", ""
	}
	for name, value := range metadata {
		if rule := brokenMetadataRule(name, value); rule != "" {
			return "", rule
		}
	}
	object, err := json.Marshal(metadata)
	if err != nil {
		return "", "its metadata cannot be encoded: " + err.Error()
	}
	if len(object) > MaxMetadataBytes {
		return "", fmt.Sprintf("its metadata has %d bytes, at most %d are allowed", len(object), MaxMetadataBytes)
	}
	return string(object), ""
}

// shownBytes is how much of a key that is too long an error repeats.
const shownBytes = 40

func brokenMetadataRule(name, value string) string {
	if use := reservedFor(name); use != "" {
		return fmt.Sprintf("the metadata key %q is reserved: %s", name, use)
	}
	if len(name) > MaxMetadataKeyBytes {
		return fmt.Sprintf("a metadata key has %d bytes, at most %d are allowed: %q…",
			len(name), MaxMetadataKeyBytes, strings.ToValidUTF8(name[:shownBytes], ""))
	}
	if rule := BrokenTextRule(name); rule != "" {
		return fmt.Sprintf("the metadata key %q %s", name, rule)
	}
	if rule := BrokenTextRule(value); rule != "" {
		return fmt.Sprintf("the value of metadata key %q %s", name, rule)
	}
	return ""
}

// BrokenTextRule says why Postgres could not store text, "" if it can.
func BrokenTextRule(text string) string {
	if !utf8.ValidString(text) {
		return "is not valid UTF-8"
	}
	if strings.IndexByte(text, 0) >= 0 {
		return "holds a NUL byte"
	}
	return ""
}

// reservedFor says what a metadata key is reserved for, "" if for nothing.
func reservedFor(name string) string {
	switch name {
	case "_watermill_message_uuid":
		return "the event id is carried there"
	case "CC", "BCC":
		return "RabbitMQ takes it for further routing keys"
	case "x-death", "x-delivery-count", "x-acquired-count", "x-stream-offset":
		return "RabbitMQ writes it over what stands there"
	}
	if strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-") {
		return "RabbitMQ keeps the history of dead letters there"
	}
	return ""
}

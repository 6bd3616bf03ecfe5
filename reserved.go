package outbox

import "strings"

// reservedFor says what a metadata key is reserved for, "" if for nothing. A message may
// go to another broker tomorrow, by a change of configuration: so it is the same for all.
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

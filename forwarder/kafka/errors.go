package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/watermill-outbox/outbox/forwarder"
)

// classify sorts what the broker or the client library said of a record (Kafka
// protocol guide, "Error Codes").
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case isAny(err, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp):
		return forwarder.Refused(err)
	case isDestinationError(err):
		return forwarder.DestinationUnavailable(err)
	default:
		return forwarder.Unavailable(err)
	}
}

func isDestinationError(err error) bool {
	return isAny(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException, kerr.TopicAuthorizationFailed)
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/forwarder"
)

// errNoAnswer says why a client was closed while messages were on their way.
var errNoAnswer = errors.New("the broker did not confirm in time, the connection was closed")

// classify sorts what the broker or the client library said of a record (Kafka
// protocol guide, "Error Codes").
func classify(err error, maxMessageBytes int) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kgo.ErrClientClosed):
		return forwarder.Unavailable(errNoAnswer)
	case errors.Is(err, kerr.MessageTooLarge):
		return forwarder.Permanent(fmt.Errorf("%w (kafka.Config.MaxMessageBytes is %d, the topic has its max.message.bytes)",
			err, maxMessageBytes))
	case isAny(err, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp):
		return forwarder.Permanent(err)
	case isDestinationError(err) || isPartitionError(err):
		return forwarder.DestinationUnavailable(err)
	default:
		return forwarder.Unavailable(err)
	}
}

func isDestinationError(err error) bool {
	return isAny(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException, kerr.TopicAuthorizationFailed)
}

// isPartitionError: the topic exists, but cannot be written for now. Others can.
func isPartitionError(err error) bool {
	return isAny(err, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.LeaderNotAvailable,
		kerr.NotLeaderForPartition, kerr.KafkaStorageError)
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

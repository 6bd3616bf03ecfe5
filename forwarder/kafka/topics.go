package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-outbox/outbox/forwarder"
)

// topicsMaxAge is how long it is believed that the broker has a topic.
const topicsMaxAge = 5 * time.Second

// missingTopics says which topics of a batch the broker does not have or does not
// give us, after those that may be created were. Asking first keeps one unknown topic
// from delaying the whole batch.
func (p *Publisher) missingTopics(ctx context.Context, client *kgo.Client, msgs []forwarder.Outgoing) (map[string]error, error) {
	var topics []string
	seen := map[string]bool{}
	for _, msg := range msgs {
		if !seen[msg.Destination] {
			seen[msg.Destination] = true
			topics = append(topics, msg.Destination)
		}
	}
	missing, err := askForTopics(ctx, client, topics, topicsMaxAge)
	if err != nil || len(missing) == 0 {
		return missing, err
	}
	// The client library remembers an absence as well. A topic that has been created
	// meanwhile should not wait for that to grow old.
	missing, err = askForTopics(ctx, client, slices.Collect(maps.Keys(missing)), time.Nanosecond)
	if err != nil || p.config.CreateTopics == nil {
		return missing, err
	}
	return p.config.CreateTopics.create(ctx, client, missing), nil
}

// forgetRecreated makes the client library ask anew for topics that were deleted and
// created again: it would go on with the id of the old one.
func forgetRecreated(client *kgo.Client, msgs []forwarder.Outgoing, results []error) {
	for i, err := range results {
		if errors.Is(err, kerr.UnknownTopicID) {
			client.PurgeTopicsFromProducing(msgs[i].Destination)
		}
	}
}

func askForTopics(ctx context.Context, client *kgo.Client, topics []string, maxAge time.Duration) (missing map[string]error, err error) {
	request := kmsg.NewPtrMetadataRequest()
	for _, name := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = new(name)
		request.Topics = append(request.Topics, topic)
	}
	response, err := client.RequestCachedMetadata(ctx, request, maxAge)
	if err != nil {
		return nil, fmt.Errorf("ask for topics: %w", err)
	}
	missing = map[string]error{}
	for _, topic := range response.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); topic.Topic != nil && isDestinationError(err) {
			missing[*topic.Topic] = fmt.Errorf("topic %q: %w", *topic.Topic, err)
		}
	}
	return missing, nil
}

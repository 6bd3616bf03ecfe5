package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
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
	topics, impossible := map[string]bool{}, map[string]error{}
	for _, msg := range msgs {
		if name := msg.Destination; topicName.MatchString(name) {
			topics[name] = true
		} else {
			impossible[name] = fmt.Errorf("topic %q: %w", name, kerr.InvalidTopicException)
		}
	}
	if len(topics) == 0 {
		return impossible, nil
	}
	missing, err := p.missingAmong(ctx, client, slices.Collect(maps.Keys(topics)))
	if err != nil {
		return nil, err
	}
	maps.Copy(missing, impossible)
	return missing, nil
}

// topicName matches what Kafka takes for the name of a topic, besides . and .., which the
// broker refuses. Others are not asked for: the answer to a name that is no UTF-8 bears
// another name, and is waited for in vain; one that is too long ends the connection, and
// an empty one fails the question for all.
var topicName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

func (p *Publisher) missingAmong(ctx context.Context, client *kgo.Client, topics []string) (map[string]error, error) {
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

// forgetTimeout bounds the question that forgetRecreated may ask: the next batch asks again.
const forgetTimeout = time.Second

// forgetRecreated makes the client library ask anew for topics that were deleted and
// created again: it would go on with the id of the old one. Where brokers have no such
// ids, it would go on with partitions that the new one does not have, and has no name for
// the error.
func (b *batch) forgetRecreated(ctx context.Context, msgs []forwarder.Outgoing, results []error) {
	highest := map[string]int32{}
	for i, err := range results {
		destination, record := msgs[i].Destination, b.records[msgs[i]]
		switch {
		case errors.Is(err, kerr.UnknownTopicID):
			b.client.PurgeTopicsFromProducing(destination)
		case record != nil && record.Partition > 0 && isTheLibrarys(err):
			highest[destination] = max(highest[destination], record.Partition)
		}
	}
	if len(highest) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	response, err := metadataOf(ctx, b.client, slices.Collect(maps.Keys(highest)), time.Nanosecond)
	if err != nil {
		return
	}
	for _, topic := range response.Topics {
		if topic.Topic != nil && topic.ErrorCode == 0 && int(highest[*topic.Topic]) >= len(topic.Partitions) {
			b.client.PurgeTopicsFromProducing(*topic.Topic)
		}
	}
}

// isTheLibrarys says that no broker failed the record, but the client library by itself.
func isTheLibrarys(err error) bool {
	_, fromBroker := errors.AsType[*kerr.Error](err)
	return errors.Is(err, forwarder.ErrUnavailable) && !fromBroker && !errors.Is(err, errNoAnswer)
}

func metadataOf(ctx context.Context, client *kgo.Client, topics []string, maxAge time.Duration) (*kmsg.MetadataResponse, error) {
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
	return response, nil
}

func askForTopics(ctx context.Context, client *kgo.Client, topics []string, maxAge time.Duration) (missing map[string]error, err error) {
	response, err := metadataOf(ctx, client, topics, maxAge)
	if err != nil {
		return nil, err
	}
	missing = map[string]error{}
	for _, topic := range response.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); topic.Topic != nil && isDestinationError(err) {
			missing[*topic.Topic] = fmt.Errorf("topic %q: %w", *topic.Topic, err)
		}
	}
	return missing, nil
}

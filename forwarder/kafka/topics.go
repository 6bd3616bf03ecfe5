package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-outbox/outbox/forwarder"
)

// topicsMaxAge is how long what the broker said of a topic is believed.
const topicsMaxAge = 5 * time.Second

// missingTopics says which topics of a batch the broker does not have or does not
// give us. Asking first keeps one unknown topic from delaying the whole batch.
func missingTopics(ctx context.Context, client *kgo.Client, msgs []forwarder.Outgoing) (map[string]error, error) {
	request := kmsg.NewPtrMetadataRequest()
	seen := map[string]bool{}
	for _, msg := range msgs {
		if seen[msg.Destination] {
			continue
		}
		seen[msg.Destination] = true
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = new(msg.Destination)
		request.Topics = append(request.Topics, topic)
	}
	response, err := client.RequestCachedMetadata(ctx, request, topicsMaxAge)
	if err != nil {
		return nil, fmt.Errorf("ask for topics: %w", err)
	}
	missing := map[string]error{}
	for _, topic := range response.Topics {
		err := kerr.ErrorForCode(topic.ErrorCode)
		if err != nil && topic.Topic != nil && !kerr.IsRetriable(err) || topic.ErrorCode == kerr.UnknownTopicOrPartition.Code {
			missing[*topic.Topic] = fmt.Errorf("topic %q: %w", *topic.Topic, err)
		}
	}
	return missing, nil
}

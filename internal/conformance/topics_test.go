package conformance_test

import (
	"context"
	"errors"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// deleteTopics deletes all topics whose names have the prefix.
func deleteTopics(client *kgo.Client, prefix string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all := kmsg.NewPtrMetadataRequest()
	all.Topics = nil
	metadata, err := all.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	deletion := kmsg.NewPtrDeleteTopicsRequest()
	for _, found := range metadata.Topics {
		if found.Topic != nil && strings.HasPrefix(*found.Topic, prefix) {
			topic := kmsg.NewDeleteTopicsRequestTopic()
			topic.Topic = found.Topic
			deletion.Topics = append(deletion.Topics, topic)
			deletion.TopicNames = append(deletion.TopicNames, *found.Topic)
		}
	}
	deleted, err := deletion.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, topic := range deleted.Topics {
		err = errors.Join(err, kerr.ErrorForCode(topic.ErrorCode))
	}
	return err
}

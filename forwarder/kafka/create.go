package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// creationTimeout bounds one attempt to create topics: the next batch makes another.
	creationTimeout       = creationTimeoutMillis * time.Millisecond
	creationTimeoutMillis = 5000
	creationPoll          = 20 * time.Millisecond
)

// TopicCreation says how missing topics are created. The zero value leaves it to the
// broker. It needs the permission to create them (in Kafka's terms, the operation
// Create on the topic or on the cluster).
type TopicCreation struct {
	// Partitions is their number. It cannot be changed without moving keys to other
	// partitions. Default: the broker's num.partitions.
	Partitions int
	// ReplicationFactor is the number of brokers that hold a copy. Default: the broker's
	// default.replication.factor.
	ReplicationFactor int
	// Settings are settings of the topic, as "min.insync.replicas": "2". Default: the
	// broker's.
	Settings map[string]string
}

func (t *TopicCreation) check() []error {
	if t == nil {
		return nil
	}
	var errs []error
	if t.Partitions < 0 || t.Partitions > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("%w: CreateTopics.Partitions is %d, allowed is 1 to %d, or 0 for the broker's default",
			ErrInvalidConfig, t.Partitions, math.MaxInt32))
	}
	if t.ReplicationFactor < 0 || t.ReplicationFactor > math.MaxInt16 {
		errs = append(errs, fmt.Errorf("%w: CreateTopics.ReplicationFactor is %d, allowed is 1 to %d, or 0 for the broker's default",
			ErrInvalidConfig, t.ReplicationFactor, math.MaxInt16))
	}
	if _, ok := t.Settings[""]; ok {
		errs = append(errs, fmt.Errorf("%w: CreateTopics.Settings has one without a name", ErrInvalidConfig))
	}
	return errs
}

// create creates topics that are missing, unless they are missing for another reason
// than that they do not exist, and returns those that are missing still.
func (t *TopicCreation) create(ctx context.Context, client *kgo.Client, missing map[string]error) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, creationTimeout)
	defer cancel()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if errors.Is(missing[name], kerr.UnknownTopicOrPartition) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return missing
	}
	response, err := t.request(names).RequestWith(ctx, client)
	if err != nil {
		for _, name := range names {
			missing[name] = fmt.Errorf("create topic %q: %w", name, err)
		}
		return missing
	}
	var created []string
	for _, topic := range response.Topics {
		err := kerr.ErrorForCode(topic.ErrorCode)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) { // another replica was quicker
			created = append(created, topic.Topic)
			continue
		}
		missing[topic.Topic] = fmt.Errorf("create topic %q: %w", topic.Topic, withMessage(err, topic.ErrorMessage))
	}
	awaitTopics(ctx, client, created, missing)
	return missing
}

func (t *TopicCreation) request(names []string) *kmsg.CreateTopicsRequest {
	request := kmsg.NewPtrCreateTopicsRequest()
	request.TimeoutMillis = creationTimeoutMillis
	for _, name := range names {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic = name
		topic.NumPartitions, topic.ReplicationFactor = -1, -1 // the broker's defaults
		if t.Partitions > 0 {
			topic.NumPartitions = int32(t.Partitions) //nolint:gosec // check bounds it
		}
		if t.ReplicationFactor > 0 {
			topic.ReplicationFactor = int16(t.ReplicationFactor) //nolint:gosec // check bounds it
		}
		for _, name := range slices.Sorted(maps.Keys(t.Settings)) {
			setting := kmsg.NewCreateTopicsRequestTopicConfig()
			setting.Name, setting.Value = name, new(t.Settings[name])
			topic.Configs = append(topic.Configs, setting)
		}
		request.Topics = append(request.Topics, topic)
	}
	return request
}

// awaitTopics waits until the brokers know what their controller has created, and takes
// that from missing.
func awaitTopics(ctx context.Context, client *kgo.Client, created []string, missing map[string]error) {
	for {
		still, err := askForTopics(ctx, client, created, time.Nanosecond)
		if err == nil {
			for _, name := range created {
				if still[name] == nil {
					delete(missing, name)
				}
			}
			created = slices.Collect(maps.Keys(still))
		}
		if len(created) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(creationPoll):
		}
	}
}

// withMessage adds what the broker says of an error, if it says anything.
func withMessage(err error, message *string) error {
	if message == nil || *message == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, *message)
}

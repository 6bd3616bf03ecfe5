// Package testkafka gives each test topics of its own on a real Kafka broker.
package testkafka

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	defaultBrokers = "127.0.0.1:29092"
	requestTimeout = 30 * time.Second
)

// Brokers are the addresses of the test broker.
func Brokers() []string {
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" {
		return strings.Split(brokers, ",")
	}
	return strings.Split(defaultBrokers, ",")
}

// TopicName returns a name that no other test has. The topic does not exist yet.
func TopicName(t *testing.T) string {
	t.Helper()
	random := make([]byte, 6)
	_, err := rand.Read(random)
	require.NoError(t, err)
	return "test-" + hex.EncodeToString(random)
}

// NewTopic creates a topic that is deleted after the test. Configs are pairs of topic
// settings, as "max.message.bytes", "1000". It fails the test where no broker
// answers: start one with "make services".
func NewTopic(t *testing.T, partitions int32, configs ...string) string {
	t.Helper()
	name := TopicName(t)
	CreateTopic(t, name, partitions, configs...)
	return name
}

// CreateTopic is NewTopic with a given name.
func CreateTopic(t *testing.T, name string, partitions int32, configs ...string) {
	t.Helper()
	client := newClient(t, kgo.MetadataMinAge(10*time.Millisecond)) // an absence is remembered, too
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic = name
	topic.NumPartitions = partitions
	topic.ReplicationFactor = 1
	for i := 0; i+1 < len(configs); i += 2 {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = configs[i], &configs[i+1]
		topic.Configs = append(topic.Configs, config)
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)

	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	response, err := request.RequestWith(ctx, client)
	require.NoErrorf(t, err, "no Kafka at %v: run \"make services\", or set KAFKA_BROKERS", Brokers())
	require.NoError(t, kerr.ErrorForCode(response.Topics[0].ErrorCode))
	t.Cleanup(func() { DeleteTopic(t, name) })
	// The broker may not lead yet what its controller has created, and would answer that
	// it does not have the topic.
	require.Eventually(t, func() bool {
		_, err := Ends(ctx, client, name, partitions)
		return err == nil
	}, requestTimeout, 10*time.Millisecond)
}

// FutureTopic returns a name for a topic that is to be created, and is deleted after the
// test if it was.
func FutureTopic(t *testing.T) string {
	t.Helper()
	name := TopicName(t)
	t.Cleanup(func() { DeleteTopic(t, name) })
	return name
}

// Partitions returns the number of a topic's partitions: 0 where there is no such topic.
func Partitions(t *testing.T, name string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	return partitions(t, ctx, newClient(t), name)
}

func partitions(t *testing.T, ctx context.Context, client *kgo.Client, name string) int {
	t.Helper()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &name
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		t.Errorf("ask for topic %s: %v", name, err)
		return 0
	}
	return len(response.Topics[0].Partitions)
}

// TopicSetting returns a setting of a topic.
func TopicSetting(t *testing.T, topic, name string) string {
	t.Helper()
	return setting(t, newClient(t), kmsg.ConfigResourceTypeTopic, topic, name)
}

func setting(t *testing.T, client *kgo.Client, kind kmsg.ConfigResourceType, of, name string) string {
	t.Helper()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName, resource.ConfigNames = kind, of, []string{name}
	request := kmsg.NewPtrDescribeConfigsRequest()
	request.Resources = append(request.Resources, resource)
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	response, err := request.RequestWith(ctx, client)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(response.Resources[0].ErrorCode))
	for _, config := range response.Resources[0].Configs {
		if config.Name == name && config.Value != nil {
			return *config.Value
		}
	}
	require.FailNowf(t, "no such setting",
		"the Kafka at %v does not tell %s of %s: \"make services\" starts one that does", Brokers(), name, of)
	return ""
}

// Ends returns the offset after the last record of each partition. It fails where the
// broker does not lead all of them.
func Ends(ctx context.Context, client *kgo.Client, name string, partitions int32) (map[int32]int64, error) {
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = name
	for partition := range partitions {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition = partition
		p.Timestamp = -1 // the end
		topic.Partitions = append(topic.Partitions, p)
	}
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("ends of %s: %w", name, err)
	}
	ends := map[int32]int64{}
	for _, topic := range response.Topics {
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return nil, fmt.Errorf("ends of %s: %w", name, err)
			}
			ends[partition.Partition] = partition.Offset
		}
	}
	if len(ends) != int(partitions) {
		return nil, fmt.Errorf("ends of %s: %d of %d partitions answered", name, len(ends), partitions)
	}
	return ends, nil
}

// DeleteTopic deletes a topic if it exists, and waits until the broker does not have it any
// more: it would take messages for it for a moment, which are lost.
func DeleteTopic(t *testing.T, name string) {
	t.Helper()
	client := newClient(t)
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = &name
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.Topics = append(request.Topics, topic)
	request.TopicNames = []string{name}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	response, err := request.RequestWith(ctx, client)
	require.NoError(t, err)
	if err := kerr.ErrorForCode(response.Topics[0].ErrorCode); err != nil {
		require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	}
	require.Eventually(t, func() bool { return partitions(t, ctx, client, name) == 0 }, requestTimeout, 10*time.Millisecond)
}

func newClient(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(Brokers()...)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// Consumer reads a topic from its beginning.
type Consumer struct{ client *kgo.Client }

// NewConsumer returns a Consumer of all partitions of the topics, without a group.
func NewConsumer(t *testing.T, topics ...string) *Consumer {
	t.Helper()
	return &Consumer{client: newClient(t,
		kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100*time.Millisecond),
	)}
}

// Take waits for the next n records, and fails the test where they do not come.
func (c *Consumer) Take(t *testing.T, n int) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	var records []*kgo.Record
	for len(records) < n {
		fetches := c.client.PollRecords(ctx, n-len(records))
		require.NoErrorf(t, ctx.Err(), "%d of %d records came", len(records), n)
		require.Empty(t, fetches.Errors())
		records = append(records, fetches.Records()...)
	}
	return records
}

package testkafka

import (
	"context"
	"crypto/rand"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// NewStarvedTopic creates a topic of one partition that takes nothing, since it lacks one
// of the two replicas it insists on: that broker is registered, but never came.
func NewStarvedTopic(t *testing.T) string {
	t.Helper()
	client := newClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	metadata, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	require.NoErrorf(t, err, "no Kafka at %v: run \"make services\", or set KAFKA_BROKERS", Brokers())
	absent := registerBroker(t, client, *metadata.ClusterID)

	replicas := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	replicas.Replicas = []int32{metadata.Brokers[0].NodeID, absent}
	insisting := kmsg.NewCreateTopicsRequestTopicConfig()
	insisting.Name, insisting.Value = "min.insync.replicas", new("2")
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = FutureTopic(t), -1, -1
	topic.ReplicaAssignment = append(topic.ReplicaAssignment, replicas)
	topic.Configs = append(topic.Configs, insisting)
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, client)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(response.Topics[0].ErrorCode))
	return topic.Topic
}

// registerBroker does what a broker does that starts, and no more. The broker is
// forgotten after the test.
func registerBroker(t *testing.T, client *kgo.Client, clusterID string) int32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	versions, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, client)
	require.NoError(t, err)
	number, err := rand.Int(rand.Reader, big.NewInt(1<<30))
	require.NoError(t, err)
	request := kmsg.NewPtrBrokerRegistrationRequest()
	request.BrokerID = 1000 + int32(number.Int64())
	request.ClusterID = clusterID
	listener := kmsg.NewBrokerRegistrationRequestListener()
	listener.Name, listener.Host, listener.Port = "PLAINTEXT", "127.0.0.1", 1
	request.Listeners = append(request.Listeners, listener)
	for _, supported := range versions.SupportedFeatures {
		feature := kmsg.NewBrokerRegistrationRequestFeature()
		feature.Name, feature.MinSupportedVersion, feature.MaxSupportedVersion = supported.Name, supported.MinVersion, supported.MaxVersion
		request.Features = append(request.Features, feature)
	}
	request.LogDirs = make([][16]byte, 1)
	_, err = rand.Read(request.LogDirs[0][:])
	require.NoError(t, err)
	_, err = rand.Read(request.IncarnationID[:])
	require.NoError(t, err)

	_, controller, ok := strings.Cut(brokerSetting(t, "controller.quorum.voters"), "@")
	require.True(t, ok)
	toController, err := kgo.NewClient(kgo.SeedBrokers(controller))
	require.NoError(t, err)
	defer toController.Close()
	answer, err := toController.SeedBrokers()[0].Request(ctx, request)
	require.NoError(t, err)
	response, ok := answer.(*kmsg.BrokerRegistrationResponse)
	require.True(t, ok)
	require.NoError(t, kerr.ErrorForCode(response.ErrorCode))
	t.Cleanup(func() { unregisterBroker(t, client, request.BrokerID) })
	return request.BrokerID
}

func unregisterBroker(t *testing.T, client *kgo.Client, id int32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), requestTimeout)
	defer cancel()
	request := kmsg.NewPtrUnregisterBrokerRequest()
	request.BrokerID = id
	response, err := request.RequestWith(ctx, client)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(response.ErrorCode))
}

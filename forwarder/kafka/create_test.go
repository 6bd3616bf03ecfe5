package kafka_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

func TestMissingTopicsAreCreatedWhenAskedFor(t *testing.T) {
	t.Parallel()
	existing, first, second := testkafka.NewTopic(t, 1), testkafka.FutureTopic(t), testkafka.FutureTopic(t)
	publisher := newPublisher(t, kafka.Config{CreateTopics: &kafka.TopicCreation{
		Partitions: 3, ReplicationFactor: 1, Settings: map[string]string{"min.insync.replicas": "1", "max.message.bytes": "12345"},
	}})
	results := publish(t, publisher,
		outgoing(first, "a", "1", "x"), outgoing(existing, "a", "2", "x"), outgoing(second, "a", "3", "x"),
		outgoing("not a topic!", "a", "4", "x"), outgoing(first, "a", "5", "x"))
	for i, want := range []error{nil, nil, nil, forwarder.ErrDestinationUnavailable, nil} {
		require.ErrorIs(t, results[i], want, "message %d", i)
	}
	require.Len(t, testkafka.NewConsumer(t, existing, first, second).Take(t, 4), 4)
	require.Equal(t, 1, testkafka.Partitions(t, existing))
	for _, topic := range []string{first, second} {
		require.Equal(t, 3, testkafka.Partitions(t, topic))
		require.Equal(t, "12345", testkafka.TopicSetting(t, topic, "max.message.bytes"))
	}
}

// Replicas of a service start together.
func TestTopicIsCreatedByManyAtOnce(t *testing.T) {
	t.Parallel()
	topic := testkafka.FutureTopic(t)
	var publishers sync.WaitGroup
	for range 5 {
		publisher := newPublisher(t, kafka.Config{CreateTopics: &kafka.TopicCreation{}}) // the broker's defaults
		publishers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for _, err := range publisher.PublishBatch(ctx, []forwarder.Outgoing{outgoing(topic, "a", "1", "x"), outgoing(topic, "b", "2", "x")}) {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	publishers.Wait()
	require.Len(t, testkafka.NewConsumer(t, topic).Take(t, 10), 10)
}

// A topic that cannot be created is a topic that is not there: the others flow.
func TestTopicThatCannotBeCreatedFailsAlone(t *testing.T) {
	t.Parallel()
	t.Run("too few brokers", func(t *testing.T) {
		t.Parallel()
		existing, impossible := testkafka.NewTopic(t, 1), testkafka.FutureTopic(t)
		publisher := newPublisher(t, kafka.Config{CreateTopics: &kafka.TopicCreation{ReplicationFactor: 99}})
		results := publish(t, publisher, outgoing(impossible, "a", "1", "x"), outgoing(existing, "a", "2", "x"))
		require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable)
		require.ErrorContains(t, results[0], `create topic "`+impossible+`": INVALID_REPLICATION_FACTOR`)
		require.NoError(t, results[1])
	})
	t.Run("not allowed", func(t *testing.T) {
		t.Parallel()
		existing, forbidden := testkafka.NewTopic(t, 1), testkafka.FutureTopic(t)
		user := testkafka.NewUser(t)
		user.Allow(t, existing, kmsg.ACLOperationWrite)
		user.Allow(t, forbidden, kmsg.ACLOperationWrite)
		publisher := newPublisherAt(t, testkafka.SASL, kafka.Config{SASL: sha256(user), CreateTopics: &kafka.TopicCreation{Partitions: 1}})
		requireSoon(t, publisher, outgoing(existing, "a", "1", "x"))
		var results []error
		require.Eventually(t, func() bool { // the permission to write comes first
			results = publish(t, publisher, outgoing(forbidden, "a", "2", "x"), outgoing(existing, "a", "3", "x"))
			return results[1] == nil && results[0] != nil && strings.Contains(results[0].Error(), "create topic")
		}, 30*time.Second, 50*time.Millisecond)
		require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable)
		require.ErrorContains(t, results[0], `create topic "`+forbidden+`": TOPIC_AUTHORIZATION_FAILED`)

		user.Allow(t, forbidden, kmsg.ACLOperationCreate)
		requireSoon(t, publisher, outgoing(forbidden, "a", "2", "x"))
		require.Len(t, testkafka.NewConsumer(t, forbidden).Take(t, 1), 1)
	})
}

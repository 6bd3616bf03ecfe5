package conformance_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

const patience = 30 * time.Second

// variant is one way to configure the outbox, and what the suite may ask of it.
type variant struct {
	write        write
	partitionKey func(topic string, msg *message.Message) (string, error)
	forwarder    forwarder.Config
	features     tests.Features
}

// broker is what differs between Kafka and RabbitMQ.
type broker interface {
	// publisher is the forwarder's.
	publisher(t *testing.T) message.Publisher
	// subscriber is Watermill's own, as a member of the group.
	subscriber(t *testing.T, group string) message.Subscriber
	// topics is the prefix of all topics of the test.
	topics() string
}

// run runs the suite over a pipeline.
func run(t *testing.T, b broker, v variant) {
	t.Helper()
	v.features.GenerateTopicFunc = func(test tests.TestContext) string { return b.topics() + test.TestID.String() }
	p := newPipeline(t, b, v)
	tests.TestPubSub(t, v.features, p.pubSub, p.groupPubSub)
	if v.features.GuaranteedOrder {
		t.Run("TestPublishSubscribeInOrder at full length", func(t *testing.T) {
			t.Parallel()
			features := v.features
			features.ForceShort = false
			tests.TestPublishSubscribeInOrder(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, p.pubSub)
		})
	}
}

// pipeline is what the suite takes for a Pub/Sub: a publisher that commits to an outbox of
// the test's own, from where a forwarder brings the messages to the broker, and the
// broker's stock subscribers.
type pipeline struct {
	broker    broker
	publisher *committing
}

// newPipeline runs a forwarder until the test ends. It must have settled everything then.
func newPipeline(t *testing.T, b broker, v variant) *pipeline {
	t.Helper()
	db := testdb.New(t)
	runForwarder(t, db, b.publisher(t), v.forwarder)

	to, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.Schema, PartitionKey: v.partitionKey}, nil)
	require.NoError(t, err)
	publisher := &committing{db: db.DB, outbox: to, write: v.write}
	t.Cleanup(func() { assertSettled(t, db, v.forwarder.Settlement, publisher.committed.Load()) })
	return &pipeline{broker: b, publisher: publisher}
}

func (p *pipeline) pubSub(t *testing.T) (message.Publisher, message.Subscriber) {
	t.Helper()
	return p.groupPubSub(t, "suite")
}

func (p *pipeline) groupPubSub(t *testing.T, group string) (message.Publisher, message.Subscriber) {
	t.Helper()
	subscriber := p.broker.subscriber(t, group)
	// TestPublishSubscribeInOrder leaves its subscribers open.
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	return p.publisher, subscriber
}

func runForwarder(t *testing.T, db *testdb.DB, publisher message.Publisher, cfg forwarder.Config) {
	t.Helper()
	cfg.Schema = db.Schema
	f, err := forwarder.New(db.DB, publisher, cfg, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	select {
	case <-f.Running():
	case <-time.After(patience):
		require.Fail(t, "the forwarder did not start")
	}
}

// assertSettled, like all that cleans up here, does not end the test: of a test with
// subtests that ends while it cleans up, nothing is reported.
func assertSettled(t *testing.T, db *testdb.DB, settlement forwarder.Settlement, committed int64) {
	t.Helper()
	want := int64(0)
	if settlement == forwarder.MarkPublished {
		want = committed
	}
	assert.NotZero(t, committed)
	assert.Eventually(t, func() bool {
		var waiting, kept int64
		err := db.QueryRowContext(context.WithoutCancel(t.Context()),
			`SELECT count(*) FILTER (WHERE published_at IS NULL), count(*) FROM `+db.Schema.Outbox()).Scan(&waiting, &kept)
		return err == nil && waiting == 0 && kept == want
	}, patience, 10*time.Millisecond, "the outbox holds what is not settled, or not all that is to be kept")
}

// payloadAsKey makes a unit of what the suite wants in order: messages of one payload.
func payloadAsKey(_ string, msg *message.Message) (string, error) { return string(msg.Payload), nil }

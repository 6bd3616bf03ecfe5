package rig

import (
	"context"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/forwarder"
)

var nopLogger = watermill.NopLogger{}

// Publisher is what a forwarder sends to.
type Publisher interface {
	message.Publisher
	forwarder.BatchPublisher
}

// Metered passes batches on and notes what was confirmed.
type Metered struct {
	Publisher

	Meter *compare.Meter
	// ExceptHot leaves messages of HotKey out.
	ExceptHot bool
}

// PublishBatch passes a batch on.
func (m Metered) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	m.Meter.AwaitStart(ctx)
	results := m.Publisher.PublishBatch(ctx, msgs)
	confirmed := 0
	for i, err := range results {
		if err == nil && (!m.ExceptHot || msgs[i].PartitionKey != HotKey) {
			confirmed++
		}
	}
	m.Meter.Add(confirmed)
	return results
}

// MeteredSingly passes single messages on, as Watermill's forwarder sends them.
type MeteredSingly struct {
	message.Publisher

	Meter *compare.Meter
}

// Publish passes messages on.
func (m MeteredSingly) Publish(topic string, msgs ...*message.Message) error {
	m.Meter.AwaitStart(msgs[0].Context())
	err := m.Publisher.Publish(topic, msgs...)
	if err == nil {
		m.Meter.Add(len(msgs))
	}
	return err
}

// Sink is a broker that costs nothing: it confirms at once. What reached it is in the tally.
type Sink struct{ Tally *compare.Tally }

// PublishBatch confirms a batch.
func (s Sink) PublishBatch(_ context.Context, msgs []forwarder.Outgoing) []error {
	for _, msg := range msgs {
		s.Tally.Add(msg.Message.UUID)
	}
	return make([]error, len(msgs))
}

// Publish confirms messages.
func (s Sink) Publish(_ string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		s.Tally.Add(msg.UUID)
	}
	return nil
}

// Close does nothing.
func (Sink) Close() error { return nil }

// Counter is a sink that only counts.
type Counter struct{ received atomic.Int64 }

// Received is how many messages have been confirmed so far.
func (c *Counter) Received() int { return int(c.received.Load()) }

// PublishBatch confirms a batch.
func (c *Counter) PublishBatch(_ context.Context, msgs []forwarder.Outgoing) []error {
	c.received.Add(int64(len(msgs)))
	return make([]error, len(msgs))
}

// Publish confirms messages.
func (c *Counter) Publish(_ string, msgs ...*message.Message) error {
	c.received.Add(int64(len(msgs)))
	return nil
}

// Close does nothing.
func (*Counter) Close() error { return nil }

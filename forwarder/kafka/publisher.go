package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/forwarder"
)

// ErrClosed says that the Publisher was closed.
var ErrClosed = errors.New("kafka: the publisher is closed")

// replaceGrace is how much longer than its context a batch may take before the client
// is closed.
const replaceGrace = 500 * time.Millisecond

// Publisher sends messages to Kafka. It is a Watermill publisher and a
// forwarder.BatchPublisher. It is safe for concurrent use.
type Publisher struct {
	config Config
	logger watermill.LoggerAdapter

	mu     sync.Mutex
	client *kgo.Client // nil: closed
}

var (
	_ message.Publisher        = (*Publisher)(nil)
	_ forwarder.BatchPublisher = (*Publisher)(nil)
)

// NewPublisher returns a Publisher. It does not connect yet: brokers that are away
// show when the first batch is sent. A nil logger logs nothing. Errors wrap
// ErrInvalidConfig. Close it to free its connections.
func NewPublisher(cfg Config, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	p := &Publisher{config: cfg, logger: logger}
	client, err := p.newClient()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	p.client = client
	return p, nil
}

// Publish sends messages one after another and returns the first error. A message's
// key is its UUID. It waits for each confirmation until the message's context ends.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		outgoing := forwarder.Outgoing{Destination: topic, PartitionKey: msg.UUID, Message: msg}
		if err := p.PublishBatch(msg.Context(), []forwarder.Outgoing{outgoing})[0]; err != nil {
			return fmt.Errorf("kafka: message %.255q to %q: %w", msg.UUID, topic, err)
		}
	}
	return nil
}

// PublishBatch sends a batch as forwarder.BatchPublisher describes. What can be
// checked (marshalling, topics) is checked before the first message is sent.
func (p *Publisher) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	client := p.currentClient()
	if client == nil {
		return same(len(msgs), forwarder.Unavailable(ErrClosed))
	}
	missing, err := p.missingTopics(ctx, client, msgs)
	if err != nil {
		return same(len(msgs), forwarder.Unavailable(err))
	}
	b := &batch{
		client:   client,
		records:  make(map[forwarder.Outgoing]*kgo.Record, len(msgs)),
		rejected: make(map[forwarder.Outgoing]error),

		maxMessageBytes: p.config.MaxMessageBytes,
		newClient:       p.newClient,
	}
	defer b.close()
	for _, msg := range msgs {
		record, err := p.record(msg)
		switch {
		case err != nil:
			b.rejected[msg] = err
		case missing[msg.Destination] != nil:
			b.rejected[msg] = forwarder.DestinationUnavailable(missing[msg.Destination])
		default:
			b.records[msg] = record
		}
	}
	stop := p.replaceAfter(ctx, client)
	defer stop()
	results := forwarder.Waves(ctx, msgs, b.send)
	b.forgetRecreated(ctx, msgs, results)
	if slices.ContainsFunc(results, mayBeRemembered) {
		p.replace(client)
	}
	return results
}

// mayBeRemembered says that a client may go on to fail with this for ever: where the
// broker once did not give it a producer id, for want of a permission or through an error
// of its own, it does not ask again.
func mayBeRemembered(result error) bool {
	code, ok := errors.AsType[*kerr.Error](result)
	return ok && !code.Retriable && errors.Is(result, forwarder.ErrUnavailable)
}

// replaceAfter closes the client where ctx has ended and the batch goes on: a request
// that a broker does not answer holds its records for longer than ctx allows. What was
// sent is sent again. The grace spares batches of others, which share the client, where
// the answers come.
func (p *Publisher) replaceAfter(ctx context.Context, client *kgo.Client) (stop func()) {
	done := make(chan struct{})
	notReplacing := context.AfterFunc(ctx, func() {
		grace := time.NewTimer(replaceGrace)
		defer grace.Stop()
		select {
		case <-done:
		case <-grace.C:
			p.replace(client)
		}
	})
	return func() {
		notReplacing()
		close(done)
	}
}

// Close ends all connections. Batches in flight fail.
func (p *Publisher) Close() error {
	p.mu.Lock()
	client := p.client
	p.client = nil
	p.mu.Unlock()
	if client != nil {
		client.Close()
	}
	return nil
}

func (p *Publisher) currentClient() *kgo.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

func same(n int, err error) []error {
	results := make([]error, n)
	for i := range results {
		results[i] = err
	}
	return results
}

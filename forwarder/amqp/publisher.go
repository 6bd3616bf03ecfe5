package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/forwarder"
)

// ErrClosed says that the Publisher was closed.
var ErrClosed = errors.New("amqp: the publisher is closed")

// Publisher sends messages to RabbitMQ. It is a Watermill publisher and a
// forwarder.BatchPublisher. It is safe for concurrent use.
type Publisher struct {
	config Config
	logger watermill.LoggerAdapter

	// connecting is held by the one call that dials.
	connecting chan struct{}

	mu         sync.Mutex
	connection *connection
	closed     bool
}

var (
	_ message.Publisher        = (*Publisher)(nil)
	_ forwarder.BatchPublisher = (*Publisher)(nil)
)

// NewPublisher returns a Publisher. It does not connect yet: a broker that is away shows
// when the first batch is sent, and so does a connection that was lost; each batch
// connects anew if need be. A nil logger logs nothing. Errors wrap ErrInvalidConfig.
// Close it to free its connection.
func NewPublisher(cfg Config, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Publisher{config: cfg, logger: logger, connecting: make(chan struct{}, 1)}, nil
}

// Publish sends messages one after another and returns the first error. It waits for
// each confirmation until the message's context ends, and a little longer.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		outgoing := forwarder.Outgoing{Destination: topic, PartitionKey: msg.UUID, Message: msg}
		if err := p.PublishBatch(msg.Context(), []forwarder.Outgoing{outgoing})[0]; err != nil {
			return fmt.Errorf("amqp: message %.255q to %q: %w", msg.UUID, topic, err)
		}
	}
	return nil
}

// PublishBatch sends a batch as forwarder.BatchPublisher describes. What can be checked
// is checked before the first message is sent.
//
// A message that no queue took, a missing exchange, a lack of permission, and a queue that
// rejects, or that does not answer while the broker does, are
// forwarder.DestinationUnavailable. Where the message itself says where it
// goes (Config.RoutingKeyMetadata, Config.ExchangeMetadata, an exchange of type headers),
// one that no queue took, or that names a missing exchange, is forwarder.Refused: it holds
// back its own unit only. A connection that is lost, or blocked by an alarm of the broker,
// is forwarder.Unavailable.
func (p *Publisher) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	conn, err := p.connect(ctx)
	if err != nil {
		return same(len(msgs), forwarder.Unavailable(err))
	}
	return forwarder.Waves(ctx, msgs, newBatch(conn, msgs).send)
}

// Close ends the connection. Batches in flight fail.
func (p *Publisher) Close() error {
	p.mu.Lock()
	conn := p.connection
	p.connection = nil
	p.closed = true
	p.mu.Unlock()
	if conn != nil {
		conn.close()
	}
	return nil
}

// connect returns the connection, a new one if the last one is lost.
func (p *Publisher) connect(ctx context.Context) (*connection, error) {
	select {
	case p.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("connect: %w", ctx.Err())
	}
	defer func() { <-p.connecting }()

	conn, err := p.current()
	if err != nil || conn != nil {
		return conn, err
	}
	conn, err = dial(ctx, p.config, p.logger)
	if err != nil {
		return nil, err
	}
	if !p.adopt(conn) {
		conn.close()
		return nil, ErrClosed
	}
	return conn, nil
}

func (p *Publisher) current() (*connection, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if p.connection == nil || p.connection.isClosed() {
		return nil, nil //nolint:nilnil // none is no error: it is to be made
	}
	if p.connection.isBlocked() {
		return nil, errBlocked
	}
	return p.connection, nil
}

func (p *Publisher) adopt(conn *connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.connection = conn
	return true
}

func same(n int, err error) []error {
	results := make([]error, n)
	for i := range results {
		results[i] = err
	}
	return results
}

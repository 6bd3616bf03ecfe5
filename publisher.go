package outbox

import (
	"context"
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/schema"
)

// PartitionKeyMetadata is the metadata key from which a message's partition key is
// taken where PublisherConfig.PartitionKey is not set.
const PartitionKeyMetadata = schema.PartitionKeyMetadata

// PublisherConfig configures a Publisher. The zero value works.
type PublisherConfig struct {
	// Schema names the outbox table. Default: public.outbox.
	Schema schema.Postgres
	// PartitionKey returns a message's partition key: messages of one destination
	// with the same key are delivered in order. Usually it is the aggregate's id. An
	// empty result means the event id, and with it no order at all. It must be safe for
	// concurrent use; its error is that of the call, and nothing is written. Default: the
	// metadata value under PartitionKeyMetadata.
	PartitionKey func(destination string, msg *message.Message) (string, error)
}

func (c *PublisherConfig) setDefaults() {
	if c.PartitionKey == nil {
		c.PartitionKey = partitionKeyFromMetadata
	}
}

// Validate reports names that cannot be Postgres identifiers.
func (c PublisherConfig) Validate() error { return c.Schema.Validate() }

// Publisher writes messages into the outbox, in the caller's transaction. It never
// begins, commits or rolls back one. It is safe for concurrent use; a transaction is
// not, so calls with the same transaction must not overlap.
type Publisher struct {
	config PublisherConfig
	insert insertStatements
	logger watermill.LoggerAdapter
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. A nil logger logs nothing. It does not touch the
// database: the tables come from schema.Postgres.Migrate.
func NewPublisher(cfg PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	cfg.setDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("outbox: publisher config: %w", err)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Publisher{config: cfg, insert: insertStatements{outbox: cfg.Schema.Outbox()}, logger: logger}, nil
}

// PublishTx writes msgs to the outbox in tx, in the order given: the forwarder will
// publish them to destination once tx has committed. A message's UUID is its event
// id; a nil payload is an empty one. Any number of messages may be given, none is a
// no-op; they are sent in statements of at most 16 MiB each (a single larger message
// goes alone). The session's client_encoding must be UTF8.
//
// All messages are checked before the first is written: errors that wrap
// ErrInvalidMessage, ErrInvalidDestination or ErrNoTx, or come from PartitionKey, leave tx
// as it was. After any other one roll back, since some of the messages may have been
// written: ErrNotStored, the end of ctx, and what comes from the database, with
// schema.ErrNotMigrated or schema.ErrPreparedStatement where these say what is wrong.
func (p *Publisher) PublishTx(ctx context.Context, tx Tx, destination string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if isNil(tx) {
		return ErrNoTx
	}
	rows, err := p.rows(destination, msgs)
	if err != nil {
		return err
	}
	return p.write(ctx, tx, destination, rows)
}

func (p *Publisher) write(ctx context.Context, tx Tx, destination string, rows []row) error {
	if err := p.insert.exec(ctx, tx, destination, rows); err != nil {
		return fmt.Errorf("outbox: insert into %s: %w", p.config.Schema.Outbox(), schema.Explain(err))
	}
	p.logger.Trace("Messages written to the outbox", watermill.LogFields{
		"destination": destination,
		"messages":    len(rows),
	})
	return nil
}

// InTx returns a Watermill publisher that writes in tx, for whatever wants a
// message.Publisher. It is valid until tx ends; closing it does nothing. The
// statement runs under the first message's context.
func (p *Publisher) InTx(tx Tx) message.Publisher { return txPublisher{publisher: p, tx: tx} }

// Publish writes msgs in the transaction that each message's context carries (see
// ContextWithTx), in the order given, and under that context: where several in a row carry
// the same transaction, under the first one's. Where a message carries none, the error wraps
// ErrNoTx and nothing is written. Other errors are those of PublishTx.
func (p *Publisher) Publish(destination string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	rows, err := p.rows(destination, msgs)
	if err != nil {
		return err
	}
	txs := make([]Tx, len(msgs))
	for i, msg := range msgs {
		tx, ok := TxFromContext[Tx](msg.Context())
		if !ok || isNil(tx) {
			return fmt.Errorf("message %d (%.255q): %w", i, msg.UUID, ErrNoTx)
		}
		txs[i] = tx
	}
	for start := 0; start < len(msgs); {
		end := start + 1
		for end < len(msgs) && sameTx(txs[start], txs[end]) {
			end++
		}
		if err := p.write(msgs[start].Context(), txs[start], destination, rows[start:end]); err != nil {
			return err
		}
		start = end
	}
	return nil
}

// Close does nothing: a Publisher holds no resources, and a router that closes its
// handlers' publishers does no harm to others that use the same one.
func (p *Publisher) Close() error { return nil }

type txPublisher struct {
	publisher *Publisher
	tx        Tx
}

func (t txPublisher) Publish(destination string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	if msgs[0] == nil {
		return fmt.Errorf("%w: message 0 is nil", ErrInvalidMessage)
	}
	return t.publisher.PublishTx(msgs[0].Context(), t.tx, destination, msgs...)
}

func (t txPublisher) Close() error { return nil }

// rows checks every message and brings it into the form of the table. Its errors show no
// more of an id than is allowed: a longer one may be a payload, by mistake.
func (p *Publisher) rows(destination string, msgs []*message.Message) ([]row, error) {
	if err := validateDestination(destination); err != nil {
		return nil, err
	}
	rows := make([]row, len(msgs))
	for i, msg := range msgs {
		if msg == nil {
			return nil, fmt.Errorf("%w: message %d is nil", ErrInvalidMessage, i)
		}
		row, err := p.row(destination, msg)
		if err != nil {
			return nil, fmt.Errorf("message %d (%.255q): %w", i, msg.UUID, err)
		}
		rows[i] = row
	}
	return rows, nil
}

func (p *Publisher) row(destination string, msg *message.Message) (row, error) {
	if err := validateID(msg); err != nil {
		return row{}, err
	}
	metadata, rule := schema.EncodeMetadata(msg.Metadata)
	if rule != "" {
		return row{}, fmt.Errorf("%w: %s", ErrInvalidMessage, rule)
	}
	key, err := p.config.PartitionKey(destination, msg)
	if err != nil {
		return row{}, fmt.Errorf("partition key: %w", err)
	}
	if err := validatePartitionKey(key); err != nil {
		return row{}, err
	}
	if err := validateSize("payload", len(msg.Payload), MaxPayloadBytes); err != nil {
		return row{}, err
	}
	return row{id: msg.UUID, partitionKey: key, metadata: metadata, payload: msg.Payload, isText: fitsText(msg.Payload)}, nil
}

func partitionKeyFromMetadata(_ string, msg *message.Message) (string, error) {
	return msg.Metadata.Get(PartitionKeyMetadata), nil
}

// isNil sees a nil *sql.Tx as well, which is what a caller has after ignoring an error.
func isNil(tx Tx) bool {
	if tx == nil {
		return true
	}
	value := reflect.ValueOf(tx)
	return value.Kind() == reflect.Pointer && value.IsNil()
}

// sameTx is a == b, but for wrappers that cannot be compared: those count as different,
// which costs a statement and nothing else.
func sameTx(a, b Tx) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

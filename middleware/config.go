package middleware

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
)

const defaultWaitTimeout = 10 * time.Second

// InboxConfig configures an Inbox. DB or Beginner is required, and nothing else.
type InboxConfig struct {
	// DB is the database of the inbox and of the handler's effects. A message that is
	// being handled holds one connection, so the pool must allow as many as there are
	// messages in flight, and more if handlers also use it outside the transaction.
	DB *sql.DB
	// Beginner stands in for DB where transactions are not those of database/sql:
	// pgxtx.NewBeginner(pool) for native pgx. Set one of the two.
	Beginner Beginner
	// Store keeps the keys. Default: a Store of the zero inbox.Config.
	Store *inbox.Store
	// Consumer is the scope within which an event is handled once. Default: the name of
	// the router's handler, so that each handler is a consumer of its own. Set it where
	// services share an inbox table and may name handlers alike, and before a handler
	// is renamed: under a new name, old events count as not handled. It stands for one
	// handler a topic: a second one is ErrConsumerShared. Handlers that share the work of
	// a topic, each with some of its messages, get an Inbox each.
	Consumer string
	// EventID returns a message's event id, for messages whose UUID is not stable across
	// deliveries or not set by the producer. Its error is returned, to be tried again unless
	// it wraps ErrPermanent. It must be safe for concurrent use. Default: the UUID.
	EventID func(msg *message.Message) (string, error)
	// Outbox takes the messages that handlers return. Default: none; returned messages
	// are then ErrNoOutbox.
	Outbox *outbox.Publisher
	// WaitTimeout is how long a message waits while another delivery of the same event
	// is being handled; then it fails with inbox.ErrBusy, to be delivered again. It is
	// rounded up to milliseconds and bounds no lock that the handler itself waits for.
	// Default: 10 seconds.
	WaitTimeout time.Duration
	// OnDuplicate is called, if set, for each message that is dropped because its event
	// was handled before. It must be safe for concurrent use.
	OnDuplicate func(ctx context.Context, key inbox.Key)
}

// Beginner begins the transactions of an Inbox. The transaction must be READ COMMITTED,
// and it must live under ctx as one of database/sql does: when ctx ends before the
// commit, it is rolled back at once, and Commit fails. Commit and Rollback return
// sql.ErrTxDone where the transaction has ended already. A Beginner must be safe for
// concurrent use; two that are equal (==) stand for the same database.
type Beginner interface {
	Begin(ctx context.Context) (outbox.Tx, error)
}

// beginner is the one of the two that is set.
func (c InboxConfig) beginner() Beginner {
	if c.DB == nil {
		return c.Beginner
	}
	return sqlBeginner{db: c.DB}
}

type sqlBeginner struct{ db *sql.DB }

// Begin says READ COMMITTED: above it, a concurrent duplicate would be a serialization
// failure.
func (b sqlBeginner) Begin(ctx context.Context) (outbox.Tx, error) {
	return b.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

func (c *InboxConfig) setDefaults() error {
	if c.Store == nil {
		store, err := inbox.NewStore(inbox.Config{})
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
		}
		c.Store = store
	}
	if c.EventID == nil {
		c.EventID = func(msg *message.Message) (string, error) { return msg.UUID, nil }
	}
	if c.WaitTimeout == 0 {
		c.WaitTimeout = defaultWaitTimeout
	}
	return nil
}

// Validate reports the first setting that cannot work. The error wraps
// ErrInvalidConfig.
func (c InboxConfig) Validate() error {
	switch {
	case c.DB == nil && c.Beginner == nil:
		return fmt.Errorf("%w: neither DB nor Beginner is set", ErrInvalidConfig)
	case c.DB != nil && c.Beginner != nil:
		return fmt.Errorf("%w: both DB and Beginner are set", ErrInvalidConfig)
	case c.WaitTimeout < 0 || c.WaitTimeout > inbox.MaxLimit:
		return fmt.Errorf("%w: WaitTimeout is %s, it must lie between 0 (the default) and %s",
			ErrInvalidConfig, c.WaitTimeout, inbox.MaxLimit)
	}
	if c.Consumer == "" {
		return nil
	}
	key := inbox.Key{Consumer: c.Consumer, EventID: "any"}
	if err := key.Validate(); err != nil {
		return fmt.Errorf("%w: Consumer: %w", ErrInvalidConfig, err)
	}
	return nil
}

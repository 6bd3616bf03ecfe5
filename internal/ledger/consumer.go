package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/middleware"
)

const (
	consumerGroup = "ledger"
	// longestHandling is how long a message is in hand, but for a few.
	longestHandling = 100 * time.Millisecond
)

// consumer is the service on the other side: a Watermill router whose handler is
// decorated with the inbox.
type consumer struct {
	config Config
	tables tables
	inbox  *middleware.Inbox

	duplicates atomic.Int64
	faults     faults

	subscribers []message.Subscriber
	router      *message.Router
	ended       chan error
}

func newConsumer(cfg Config, db *sql.DB, t tables) (*consumer, error) {
	c := &consumer{config: cfg, tables: t, faults: faults{seed: cfg.Seed, seen: map[string]bool{}}}
	store, err := inbox.NewStore(inbox.Config{Schema: cfg.Schema})
	if err != nil {
		return nil, err
	}
	c.inbox, err = middleware.NewInbox(middleware.InboxConfig{
		DB:          db,
		Store:       store,
		Consumer:    consumerGroup,
		OnDuplicate: func(context.Context, inbox.Key) { c.duplicates.Add(1) },
	}, nil)
	return c, err
}

// start joins the group, again after a stop.
func (c *consumer) start(ctx context.Context) error {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: c.config.Patience}, nil)
	if err != nil {
		return fmt.Errorf("ledger: router: %w", err)
	}
	router.AddMiddleware(c.noteFailure, wm.Recoverer, c.inbox.Middleware)
	for _, destination := range c.config.Destinations {
		subscriber, err := c.config.Broker.Subscriber(groupOf(destination))
		if err != nil {
			return fmt.Errorf("ledger: %w", err)
		}
		c.subscribers = append(c.subscribers, subscriber)
		router.AddConsumerHandler("ledger-"+destination, destination, subscriber, c.handle)
	}
	c.router, c.ended = router, make(chan error, 1)
	go func() { c.ended <- router.Run(ctx) }()
	select {
	case <-router.Running():
		return nil
	case err := <-c.ended:
		c.router = nil
		return errors.Join(errors.New("ledger: the router ended"), err)
	}
}

func (c *consumer) stop() error {
	var err error
	if c.router != nil {
		err = errors.Join(c.router.Close(), <-c.ended)
	}
	for _, subscriber := range c.subscribers { // where its context has ended, the router leaves them open
		err = errors.Join(err, subscriber.Close())
	}
	c.router, c.subscribers = nil, nil
	if err != nil {
		return fmt.Errorf("ledger: stop consumer: %w", err)
	}
	return nil
}

func (c *consumer) restart(ctx context.Context) error {
	if err := c.stop(); err != nil {
		return err
	}
	return c.start(ctx)
}

// catchUp waits until everything that lies in the broker is handled, and stops.
func (c *consumer) catchUp(ctx context.Context) error {
	left := int64(0)
	err := await(ctx, c.config.Patience, func() (bool, error) {
		var err error
		if left, err = c.unhandled(ctx); err != nil || left > 0 {
			return false, err
		}
		// What is in hand may be missing from that count. It is mostly done a moment later;
		// whatever the subscriber has not acked by then counts again once it is closed.
		if !pause(ctx, longestHandling) {
			return false, context.Cause(ctx)
		}
		if err := c.stop(); err != nil {
			return false, err
		}
		if left, err = c.unhandled(ctx); err != nil || left == 0 {
			return true, err
		}
		return false, c.start(ctx)
	})
	if err != nil {
		return fmt.Errorf("ledger: the consumer has not caught up: %w; %d messages are left, its last failure: %w",
			err, left, errOr(c.faults.lastFailure(), "none"))
	}
	return nil
}

func (c *consumer) unhandled(ctx context.Context) (total int64, err error) {
	for _, destination := range c.config.Destinations {
		unhandled, err := c.config.Broker.Unhandled(ctx, groupOf(destination), destination)
		if err != nil {
			return 0, err
		}
		total += unhandled
	}
	return total, nil
}

// groupOf: a group for each destination, so that none waits for another to rebalance.
func groupOf(destination string) string { return consumerGroup + "-" + destination }

// handle writes the effect twice over, as a row and in a sum.
func (c *consumer) handle(msg *message.Message) error {
	ctx := msg.Context()
	tx, ok := outbox.TxFromContext[*sql.Tx](ctx)
	if !ok {
		return errors.New("no transaction in the message's context")
	}
	var event content
	if err := json.NewDecoder(bytes.NewReader(msg.Payload)).Decode(&event); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	fault := c.faults.next(msg.UUID)
	if fault == failBefore {
		return errInjected
	}
	if err := c.tables.writeEffect(ctx, tx, msg.UUID, event); err != nil {
		return err
	}
	switch fault {
	case failAfter:
		return errInjected
	case panicAfter:
		panic(errInjected)
	default:
		return nil
	}
}

func (t tables) writeEffect(ctx context.Context, tx *sql.Tx, id string, event content) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO `+t.effects+` (event_id, key, n) VALUES ($1, $2, $3)`, id, event.Key, event.N)
	if err != nil {
		return fmt.Errorf("effect: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO `+t.balances+` AS b (key, balance) VALUES ($1, 1)
		ON CONFLICT (key) DO UPDATE SET balance = b.balance + 1`, event.Key)
	if err != nil {
		return fmt.Errorf("balance: %w", err)
	}
	return nil
}

// noteFailure remembers what goes wrong without having been asked to, for a message
// to people: an error of the database is tried again like any other.
func (c *consumer) noteFailure(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if c.faults.note(err) && c.config.Faults != nil {
			pause(msg.Context(), afterFailure) // a database that is away is not asked all the time
		}
		return produced, err
	}
}

var errInjected = errors.New("ledger: a failure on purpose")

type fault int

const (
	none fault = iota
	failBefore
	failAfter
	panicAfter
)

// faults makes some handlers fail the first time they see an event.
type faults struct {
	seed uint64

	mu       sync.Mutex
	seen     map[string]bool
	injected int
	last     error
}

func (f *faults) next(id string) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[id] {
		return none
	}
	f.seen[id] = true
	hash := fnv.New32a()
	_, _ = fmt.Fprint(hash, f.seed, id)
	const oneIn = 30 // of each kind
	fault := fault(hash.Sum32() % oneIn)
	if fault > panicAfter {
		return none
	}
	if fault != none {
		f.injected++
	}
	return fault
}

// note reports whether err is one that nobody has injected.
func (f *faults) note(err error) bool {
	if panicked, ok := errors.AsType[wm.RecoveredPanicError](err); ok {
		if thrown, ok := panicked.V.(error); ok {
			err = thrown
		}
	}
	if err == nil || errors.Is(err, errInjected) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = err
	return true
}

func (f *faults) lastFailure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

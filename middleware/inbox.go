package middleware

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
)

// Inbox is a Watermill middleware that handles each event once: it begins a
// transaction, records the event's key in the inbox, runs the handler, writes the
// messages that the handler returns to the outbox, and commits. If anything fails,
// panics or outlives the message's context, none of it happened, and the message can
// be delivered again. An event whose key is there already is dropped: the handler
// does not run, and the message is acked.
//
// Decorate the handler itself, so that nothing can come between the two:
//
//	router.AddHandler("debit", "orders", subscriber, "payments", publisher, inbox.Middleware(debit))
//	router.AddConsumerHandler("ship", "orders", subscriber, inbox.NoPublish(ship))
//
// The handler finds the transaction in the message's context and must not end it,
// neither by Commit or Rollback nor in SQL (of which pgx under database/sql would not even
// tell: the message is acked), and must not ack the message:
//
//	tx, ok := outbox.TxFromContext[*sql.Tx](msg.Context()) // [pgx.Tx] with InboxConfig.Beginner
//
// Only what it does in this transaction is done once. The transaction is READ
// COMMITTED, whatever the database's default, and its commit is durable when the
// message is acked, even where synchronous_commit is off.
//
// Returned messages go to the handler's publish topic, and the router gets none: give
// that topic to router.AddHandler, with the same outbox.Publisher as its publisher.
// Without the middleware that one refuses to publish (outbox.ErrNoTx) instead of
// publishing beside the transaction. The router's publisher decorators do not see
// messages that go this way.
//
// # Order of middlewares
//
// From the outside in: PoisonQueue, Retry, CircuitBreaker, Recoverer, Timeout, Inbox, the
// handler; each may be left out. Retry and the poison queue must see each attempt's
// transaction ended. Inside the inbox, Retry would run the handler twice in one
// transaction, and a poison queue would have half of a handler's effects committed; so
// would whatever else runs the handler again or hides its error. Watermill keeps one list
// of the router's and the handlers' middlewares, in the order in which they were added:
// handler.AddMiddleware puts the inbox outside of what the router gets later. Decorating
// the handler itself does not depend on that.
//
//	poison, err := wm.PoisonQueueWithFilter(middleware.PoisonPublisher(publisher, 0), "poison", middleware.IsPermanent)
//	retry := wm.Retry{
//		MaxRetries:          3,
//		InitialInterval:     100 * time.Millisecond,
//		ResetContextOnRetry: true, // else a Timeout's end would end the next attempts too
//		ShouldRetry:         func(p wm.RetryParams) bool { return !middleware.IsPermanent(p.Err) },
//	}
//	breaker := wm.NewCircuitBreaker(gobreaker.Settings{
//		IsSuccessful: func(err error) bool { return err == nil || middleware.IsPermanent(err) },
//	})
//	router.AddMiddleware(poison, retry.Middleware, breaker.Middleware, wm.Recoverer, wm.Timeout(30*time.Second))
//
// PoisonQueue. The filter keeps messages out that fail only because a database is away, a
// breaker is open or the router closes; without it they would all be put aside. Watermill
// publishes to the poison queue under the message's context, which a Timeout leaves ended
// even where the handler was in time. PoisonPublisher gives it a context of its own: else
// the message would never get there, and be delivered again for ever.
//
// Timeout. Inside Retry it bounds an attempt, and a handler that overruns it is rolled back
// even if it returns no error. The error is context.DeadlineExceeded and not permanent,
// since the database may merely be slow: the message is delivered again. A filter that also
// takes this error puts such a message aside, and with it whatever meets a slow database.
// Inside the inbox, a Timeout does the same, but the transaction stays open until the
// handler returns. Outside of Retry it bounds all attempts together. Outside of the inbox it
// also tells Postgres when to give up the transaction of a host that is lost: without it the
// event may be busy for hours, unless the role has an idle_in_transaction_session_timeout.
//
// CircuitBreaker. While it is open, messages fail before the inbox, nothing is recorded,
// and Retry spaces the attempts. Panics count as failures. Permanent errors should not
// (IsSuccessful): they speak of a message, not of what the handler depends on. One breaker
// on the router opens for all its handlers; give them breakers of their own with
// handler.AddMiddleware where they depend on different things.
//
// What works on returned messages (CorrelationID) belongs between the inbox and the
// handler. InstantAck and Deduplicator defeat the inbox: they let a message go before it
// is handled.
//
// # Same id, different content
//
// A digest of the event's destination (the router's subscribe topic) and payload is
// stored with its key. An event with the id of an earlier one and another digest is
// refused with inbox.ErrIDReused, as a permanent error, and never dropped in silence.
// Metadata is no part of the digest. The topic is: where an event may arrive again
// through a topic of another name (after a change of brokers, say), configure the
// Store with IgnoreContent.
type Inbox struct {
	config   InboxConfig
	beginner Beginner
	logger   watermill.LoggerAdapter

	// handlers holds, by topic, the one handler that a configured Consumer stands for.
	handlers sync.Map
}

// NewInbox returns an Inbox. A nil logger logs nothing. It does not touch the
// database: the tables come from schema.Postgres.Migrate. Errors wrap
// ErrInvalidConfig.
func NewInbox(cfg InboxConfig, logger watermill.LoggerAdapter) (*Inbox, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Inbox{
		config:   cfg,
		beginner: cfg.beginner(),
		logger:   logger,
	}, nil
}

// Middleware wraps h. The result is safe for concurrent use if h is. It returns no
// messages. When it returns or panics, the message is as it was delivered, whatever the
// handler did to it: context, UUID, metadata and payload. So its next attempt has the same
// key.
//
// It returns h's errors as they are; inbox.ErrBusy where another delivery of the same
// event takes too long; permanent errors (see IsPermanent) that wrap inbox.ErrIDReused,
// inbox.ErrInvalidKey, ErrNoEventID, ErrNoConsumer, ErrNoOutbox, ErrNoDestination,
// outbox.ErrInvalidMessage or outbox.ErrInvalidDestination; and errors of the database.
// Where the message's context has ended, an error that is not permanent also wraps
// context.DeadlineExceeded or context.Canceled, whatever the driver made of it.
// After a failed commit it is not always known whether it took place; a further
// delivery is safe then too, since the key is part of it.
//
// Where the same inbox stands around itself (on the router and on the handler), the
// inner one does nothing.
func (i *Inbox) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		key, err := i.key(msg)
		if err != nil {
			i.refused(msg, err)
			return nil, err
		}
		if i.isInside(msg.Context(), key) {
			return h(msg)
		}
		fresh, err := i.handleOnce(msg, key, h)
		if err = expired(msg.Context(), err); err != nil {
			i.refused(msg, err)
			return nil, err
		}
		if !fresh {
			i.dropped(msg.Context(), key)
		}
		return nil, nil
	}
}

// NoPublish is Middleware for handlers that return no messages, as
// router.AddConsumerHandler takes them.
func (i *Inbox) NoPublish(h message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	once := i.Middleware(func(msg *message.Message) ([]*message.Message, error) { return nil, h(msg) })
	return func(msg *message.Message) error {
		_, err := once(msg)
		return err
	}
}

func (i *Inbox) key(msg *message.Message) (inbox.Key, error) {
	ctx := msg.Context()
	consumer, err := i.consumer(ctx)
	if err != nil {
		return inbox.Key{}, err
	}
	id, err := i.config.EventID(msg)
	if err != nil {
		return inbox.Key{}, fmt.Errorf("middleware: event id: %w", err)
	}
	if id == "" {
		return inbox.Key{}, ErrNoEventID
	}
	key := inbox.Key{
		Consumer: consumer,
		EventID:  id,
		Digest:   inbox.Digest(message.SubscribeTopicFromCtx(ctx), msg.Payload),
	}
	if err := key.Validate(); err != nil {
		return inbox.Key{}, permanent(err)
	}
	return key, nil
}

// consumer is the configured one, or the handler's name. Two handlers under one
// configured name would hide each other's messages.
func (i *Inbox) consumer(ctx context.Context) (string, error) {
	handler := message.HandlerNameFromCtx(ctx)
	if i.config.Consumer == "" {
		if handler == "" {
			return "", ErrNoConsumer
		}
		return handler, nil
	}
	topic := message.SubscribeTopicFromCtx(ctx)
	if first, _ := i.handlers.LoadOrStore(topic, handler); first != handler {
		return "", fmt.Errorf("%w: %q and %q on topic %q, as consumer %q", ErrConsumerShared, first, handler, topic, i.config.Consumer)
	}
	return i.config.Consumer, nil
}

type insideKey struct {
	database          any
	consumer, eventID string
}

func (i *Inbox) insideKey(key inbox.Key) insideKey {
	// A Beginner that cannot be compared is known to its own Inbox only.
	database := any(i)
	if reflect.ValueOf(i.beginner).Comparable() {
		database = i.beginner
	}
	return insideKey{database: database, consumer: key.Consumer, eventID: key.EventID}
}

// isInside reports whether an inbox further out is handling the same event: waiting for
// its key would be waiting for itself.
func (i *Inbox) isInside(ctx context.Context, key inbox.Key) bool {
	return ctx.Value(i.insideKey(key)) != nil
}

// handleOnce runs h unless key is recorded already, and reports whether it did.
//
// The transaction lives under the message's context: when that ends, the transaction is
// rolled back, and the commit fails.
func (i *Inbox) handleOnce(msg *message.Message, key inbox.Key, h message.HandlerFunc) (fresh bool, err error) {
	ctx := msg.Context()
	tx, err := i.beginner.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("middleware: begin: %w", err)
	}
	defer func() { _ = i.rollBack(tx) }() // on panic too

	fresh, err = i.record(ctx, tx, key)
	if err != nil || !fresh {
		return false, err
	}
	if err := i.run(msg, tx, key, h); err != nil {
		return false, i.failed(ctx, tx, key, err)
	}
	if err := commit(ctx, tx); err != nil {
		return false, txEnded(ctx, err, err)
	}
	return true, nil
}

func (i *Inbox) record(ctx context.Context, tx outbox.Tx, key inbox.Key) (fresh bool, err error) {
	fresh, err = i.config.Store.RecordWithin(ctx, tx, key, inbox.Limits{Wait: i.config.WaitTimeout, Idle: idleBound(ctx)})
	if errors.Is(err, inbox.ErrIDReused) {
		return false, permanent(err)
	}
	if err != nil {
		return false, fmt.Errorf("middleware: %w", err)
	}
	return fresh, nil
}

// failed rolls back after err, and finds out by it whether the handler had ended the
// transaction: what err itself says of that may speak of another transaction. A handler
// that rolled back before it returned its error has done no harm.
func (i *Inbox) failed(ctx context.Context, tx outbox.Tx, key inbox.Key, err error) error {
	end := i.rollBack(tx)
	if errors.Is(end, sql.ErrTxDone) && !errors.Is(err, sql.ErrTxDone) && !i.isRecorded(ctx, key) {
		return err
	}
	return txEnded(ctx, end, err)
}

// isRecorded reports whether a further delivery would be dropped.
func (i *Inbox) isRecorded(ctx context.Context, key inbox.Key) bool {
	tx, err := i.beginner.Begin(ctx)
	if err != nil {
		return false
	}
	defer func() { _ = i.rollBack(tx) }()
	fresh, err := i.record(ctx, tx, key)
	return err == nil && !fresh
}

// txEnded makes ErrTxEnded of err where end, the error of a commit or a rollback, says that
// the handler had ended the transaction. A further delivery would find the key and drop the
// message, and what it returned with it.
func txEnded(ctx context.Context, end, err error) error {
	if errors.Is(end, sql.ErrTxDone) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrTxEnded, err)
	}
	return err
}

func (i *Inbox) run(msg *message.Message, tx outbox.Tx, key inbox.Key, h message.HandlerFunc) error {
	ctx := msg.Context()
	defer restore(ctx, msg)()
	msg.SetContext(context.WithValue(outbox.ContextWithTx(ctx, tx), i.insideKey(key), true))

	produced, err := h(msg)
	// A Timeout inside the inbox leaves its context on the message. It has cancelled it
	// by now, but the first reason stays: DeadlineExceeded if the handler overran.
	overran := errors.Is(msg.Context().Err(), context.DeadlineExceeded)
	switch {
	case err != nil && overran:
		return expired(msg.Context(), err)
	case err != nil:
		return err
	case overran:
		return fmt.Errorf("middleware: the handler overran its deadline: %w", context.DeadlineExceeded)
	}
	return i.publish(ctx, tx, produced)
}

// restore returns what makes the message the delivered one again, with ctx: whatever the
// handler does to it, the next attempt's key and digest must be the same. A key of another
// event id would let a redelivery in.
func restore(ctx context.Context, msg *message.Message) func() {
	uuid, metadata, payload := msg.UUID, maps.Clone(msg.Metadata), bytes.Clone(msg.Payload)
	return func() {
		msg.SetContext(ctx)
		msg.UUID, msg.Metadata, msg.Payload = uuid, metadata, payload
	}
}

// expired adds its reason to an error that came while or after ctx ended: each driver
// words that in its own way, down to a closed connection. What is permanent has a reason
// of its own.
func expired(ctx context.Context, err error) error {
	reason := ctx.Err()
	if err == nil || reason == nil || errors.Is(err, reason) || IsPermanent(err) {
		return err
	}
	return fmt.Errorf("middleware: %w: %w", reason, err)
}

// publish writes the messages that the handler returned to the outbox. The router
// would publish them after the commit, and a failure there would lose them.
func (i *Inbox) publish(ctx context.Context, tx outbox.Tx, produced []*message.Message) error {
	if len(produced) == 0 {
		return nil
	}
	if i.config.Outbox == nil {
		return ErrNoOutbox
	}
	destination := message.PublishTopicFromCtx(ctx)
	if destination == "" {
		return ErrNoDestination
	}
	err := i.config.Outbox.PublishTx(ctx, tx, destination, produced...)
	if errors.Is(err, outbox.ErrInvalidMessage) || errors.Is(err, outbox.ErrInvalidDestination) {
		return permanent(err)
	}
	if err != nil {
		return fmt.Errorf("middleware: publish: %w", err)
	}
	return nil
}

func commit(ctx context.Context, tx outbox.Tx) error {
	// It may be rolled back already and would only say that it is done.
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("middleware: not committed: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("middleware: commit: %w", err)
	}
	return nil
}

// rollBack ends a transaction that was not committed. If that fails, the connection is
// dropped, and Postgres rolls back by itself.
func (i *Inbox) rollBack(tx outbox.Tx) error {
	err := tx.Rollback()
	if err != nil && !errors.Is(err, sql.ErrTxDone) {
		i.logger.Debug("Rollback failed, the connection is dropped", watermill.LogFields{"error": err.Error()})
	}
	return err //nolint:wrapcheck // looked at, and not returned
}

// refused says what a poison queue outside would take away without a word.
func (i *Inbox) refused(msg *message.Message, err error) {
	if !IsPermanent(err) {
		return
	}
	i.logger.Error("Event was not handled, and a further delivery cannot mend it", err, watermill.LogFields{
		"consumer":     i.config.Consumer,
		"handler":      message.HandlerNameFromCtx(msg.Context()),
		"topic":        message.SubscribeTopicFromCtx(msg.Context()),
		"message_uuid": msg.UUID,
	})
}

func (i *Inbox) dropped(ctx context.Context, key inbox.Key) {
	i.logger.Debug("Duplicate dropped", watermill.LogFields{
		"consumer": key.Consumer,
		"event_id": key.EventID,
	})
	if i.config.OnDuplicate != nil {
		i.config.OnDuplicate(ctx, key)
	}
}

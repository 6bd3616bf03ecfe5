package middleware_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
)

// A handler that is decorated itself has the inbox next to it, whatever middleware the
// router has: each attempt has a transaction of its own.
func TestInbox_DecoratedHandlerIsRetriedInATransactionOfItsOwn(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handler := b.wrap(t, b.then(func(*message.Message) ([]*message.Message, error) {
			if b.runs.Load() == 1 {
				return nil, errHandler // after the effect
			}
			return nil, nil
		}))
		retry := wm.Retry{MaxRetries: 3, InitialInterval: time.Millisecond}
		errs := route{}.deliver(t, handler, []message.HandlerMiddleware{retry.Middleware}, newMessage("1"))
		require.NoError(t, errs[0])
		require.EqualValues(t, 2, b.runs.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

func TestInbox_NoPublish(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handler := b.inbox(t).NoPublish(func(msg *message.Message) error {
			_, err := b.debit(msg)
			return err
		})
		require.NoError(t, handler(newMessage("1")))
		require.NoError(t, handler(newMessage("1")))
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
		_, err := b.db.ExecContext(t.Context(), `DROP TABLE `+b.effects())
		require.NoError(t, err)
		require.Error(t, handler(newMessage("2")))
	})
}

// Two handlers under one configured consumer would hide each other's messages.
func TestInbox_HandlersCannotShareAConsumer(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	shared := b.inbox(t)
	deliver := func(handler, topic, id string) error {
		r := route{handler: handler, subscribe: topic}
		return r.deliver(t, b.debit, []message.HandlerMiddleware{shared.Middleware}, newMessage(id))[0]
	}
	require.NoError(t, deliver("debit", "orders", "1"))
	err := deliver("ship", "orders", "1")
	require.ErrorIs(t, err, middleware.ErrConsumerShared)
	require.True(t, middleware.IsPermanent(err))
	require.ErrorContains(t, err, `"debit" and "ship" on topic "orders", as consumer "payments"`)
	require.NoError(t, deliver("debit", "orders", "2"))
	require.NoError(t, deliver("refund", "refunds", "3"), "another topic is another matter")
	require.Equal(t, counts{keys: 3, effects: 3}, b.counts(t))
}

// A handler that ends the transaction is told so; its returned messages cannot be kept,
// and the message must not pass for handled.
func TestInbox_HandlerThatEndsTheTransaction(t *testing.T) {
	t.Parallel()
	ends := map[string]func(db database, ctx context.Context) error{"commit": database.commit, "rollback": database.rollback}
	for name, end := range ends {
		for _, returned := range [][]*message.Message{nil, {newMessage("made")}} {
			forEachDriver(t, func(t *testing.T, b *testBundle) {
				handler := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
					return returned, end(b.pool, msg.Context())
				}))
				r := route{publish: "payments", publisher: b.config.Outbox}
				err := r.deliver(t, handler, nil, newMessage("1"))[0]
				require.ErrorIs(t, err, middleware.ErrTxEnded, name)
				require.True(t, middleware.IsPermanent(err))
				require.Zero(t, b.counts(t).outbox)
			})
		}
	}
}

// A Timeout between Retry and the inbox ends its own attempt only.
func TestInbox_RetryAroundTimeout(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handler := b.wrap(t, b.then(func(*message.Message) ([]*message.Message, error) {
			if b.runs.Load() == 1 {
				return nil, errHandler
			}
			return nil, nil
		}))
		retry := wm.Retry{MaxRetries: 3, InitialInterval: time.Millisecond, ResetContextOnRetry: true}
		errs := route{}.deliver(t, handler, []message.HandlerMiddleware{retry.Middleware, wm.Timeout(wait)}, newMessage("1"))
		require.NoError(t, errs[0])
		require.EqualValues(t, 2, b.runs.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

// The same inbox on the router and on the handler does not wait for itself.
func TestInbox_AroundItself(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		b.open(t, b.db.DSN, 1)
		handler := b.wrap(t, b.wrap(t, b.debit))
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		for range 2 {
			_, err := handler(message.NewMessageWithContext(ctx, "1", nil))
			require.NoError(t, err)
		}
		require.EqualValues(t, 1, b.runs.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

// The message is acked after the commit, so the commit must be durable.
func TestInbox_CommitIsDurable(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{"off": "on", "local": "local"} {
		forEachDriver(t, func(t *testing.T, b *testBundle) {
			b.open(t, testdb.WithSetting(t, b.db.DSN, "synchronous_commit", setting), maxConns)
			_, err := b.wrap(t, func(msg *message.Message) ([]*message.Message, error) {
				var got string
				err := b.pool.scan(msg.Context(), `SELECT current_setting('synchronous_commit')`, &got)
				require.Equal(t, want, got)
				return nil, err
			})(newMessage("1"))
			require.NoError(t, err)
			var after string
			require.NoError(t, b.pool.scanDirect(t.Context(), `SELECT current_setting('synchronous_commit')`, &after))
			require.Equal(t, setting, after, "the session is as it was")
		})
	}
}

type errorLog struct {
	watermill.NopLogger

	lines []string
}

func (l *errorLog) Error(msg string, err error, fields watermill.LogFields) {
	l.lines = append(l.lines, fmt.Sprint(msg, " ", fields["message_uuid"], " ", fields["consumer"], ": ", err))
}

func (l *errorLog) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// A poison queue takes refused events away without a word; the inbox says so.
func TestInbox_RefusedEventsAreLogged(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	var log errorLog
	i, err := middleware.NewInbox(b.config, &log)
	require.NoError(t, err)
	handler := i.Middleware(b.debit)
	_, err = handler(newMessage("1"))
	require.NoError(t, err)
	_, err = handler(message.NewMessage("1", []byte("other content")))
	require.ErrorIs(t, err, inbox.ErrIDReused)
	_, err = handler(newMessage(""))
	require.ErrorIs(t, err, middleware.ErrNoEventID)
	require.Len(t, log.lines, 2)
	require.Contains(t, log.lines[0], "Event was not handled, and a further delivery cannot mend it 1 payments: middleware: permanent: inbox: the event id was used")
	require.Contains(t, log.lines[1], "no event id")
}

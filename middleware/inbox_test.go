package middleware_test

import (
	"context"
	"database/sql"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/middleware"
	"github.com/watermill-outbox/outbox/pgxtx"
)

func TestInbox_RedeliveryAfterSuccessRunsNothing(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		logger := watermill.NewCaptureLogger()
		i, err := middleware.NewInbox(b.config, logger)
		require.NoError(t, err)
		handle := i.Middleware(b.debit)
		for range 3 {
			produced, err := handle(newMessage("1"))
			require.NoError(t, err)
			require.Empty(t, produced)
		}
		require.EqualValues(t, 1, b.runs.Load())
		require.EqualValues(t, 2, b.duplicates.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
		require.True(t, logger.Has(watermill.CapturedMessage{
			Level:  watermill.DebugLogLevel,
			Fields: watermill.LogFields{"consumer": "payments", "event_id": "1"},
			Msg:    "Duplicate dropped",
		}))
	})
}

func TestInbox_RedeliveryAfterFailureRunsAgain(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		failing := true
		handle := b.wrap(t, b.then(func(*message.Message) ([]*message.Message, error) {
			if failing {
				return []*message.Message{newMessage("produced")}, errHandler
			}
			return nil, nil
		}))
		produced, err := handle(newMessage("1"))
		require.ErrorIs(t, err, errHandler)
		require.False(t, middleware.IsPermanent(err))
		require.Empty(t, produced, "a poison queue outside would let the router publish them")
		require.Equal(t, counts{}, b.counts(t))

		failing = false
		_, err = handle(newMessage("1"))
		require.NoError(t, err)
		require.EqualValues(t, 2, b.runs.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

func TestInbox_OneTransactionHoldsKeyEffectAndMessages(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handler := b.then(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{newMessage("paid-1")}, nil
		})
		errs := route{publish: "payments", publisher: b.config.Outbox}.
			deliver(t, handler, []message.HandlerMiddleware{b.inbox(t).Middleware}, newMessage("1"))
		require.NoError(t, errs[0])

		var transactions int
		err := b.db.QueryRowContext(t.Context(), `SELECT count(DISTINCT xid) FROM (
			SELECT xmin::text FROM `+b.db.Schema.Inbox()+`
			UNION ALL SELECT xmin::text FROM `+b.effects()+`
			UNION ALL SELECT xmin::text FROM `+b.db.Schema.Outbox()+`) AS rows (xid)`).Scan(&transactions)
		require.NoError(t, err)
		require.Equal(t, counts{keys: 1, effects: 1, outbox: 1}, b.counts(t))
		require.Equal(t, 1, transactions, "xmin is the transaction that wrote a row")
	})
}

func TestInbox_ConsumersSharingATableDoNotHideEachOthersMessages(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		count := func(*message.Message) ([]*message.Message, error) { b.runs.Add(1); return nil, nil }
		for _, consumer := range []string{"payments", "shipping"} {
			b.config.Consumer = consumer
			handle := b.wrap(t, count)
			for range 2 {
				_, err := handle(newMessage("1"))
				require.NoError(t, err)
			}
		}
		require.EqualValues(t, 2, b.runs.Load())
		require.EqualValues(t, 2, b.duplicates.Load())
	})
}

func TestInbox_PanicLeavesNothing(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handle := b.wrap(t, b.then(func(*message.Message) ([]*message.Message, error) { panic("boom") }))
		msg := newMessage("1")
		ctx := msg.Context()
		require.PanicsWithValue(t, "boom", func() { _, _ = handle(msg) })
		require.Equal(t, ctx, msg.Context())
		require.Equal(t, counts{}, b.counts(t))
		b.requireIdle(t)

		_, err := b.wrap(t, b.debit)(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

// t.FailNow in a handler ends its goroutine in this way.
func TestInbox_GoexitLeavesNothing(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handle := b.wrap(t, b.then(func(*message.Message) ([]*message.Message, error) {
			runtime.Goexit()
			return nil, nil
		}))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = handle(newMessage("1"))
		}()
		receive(t, ended)
		require.Equal(t, counts{}, b.counts(t))
		b.requireIdle(t)
	})
}

type contextKey struct{}

func TestInbox_ContextIsRestored(t *testing.T) {
	t.Parallel()
	outcomes := map[string]struct {
		id  string
		err error
	}{
		"success": {"1", nil},
		"failure": {"2", errHandler},
	}
	for name, outcome := range outcomes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDriver(t, func(t *testing.T, b *testBundle) {
				handle := b.wrap(t, func(msg *message.Message) ([]*message.Message, error) {
					require.Equal(t, "outer", msg.Context().Value(contextKey{}), "the handler's context descends from the message's")
					require.True(t, b.pool.inTx(msg.Context()))
					msg.SetContext(context.WithValue(msg.Context(), contextKey{}, "inner"))
					return nil, outcome.err
				})
				ctx := context.WithValue(t.Context(), contextKey{}, "outer")
				msg := message.NewMessageWithContext(ctx, outcome.id, nil)
				_, err := handle(msg)
				require.ErrorIs(t, err, outcome.err)
				require.Equal(t, ctx, msg.Context())
				require.False(t, b.pool.inTx(msg.Context()))
				_, ok := outbox.TxFromContext[outbox.Tx](msg.Context())
				require.False(t, ok)
			})
		})
	}
}

func TestNewInbox_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	db := new(sql.DB)
	for name, cfg := range map[string]middleware.InboxConfig{
		"no database":        {},
		"two databases":      {DB: db, Beginner: pgxtx.NewBeginner(nil)},
		"negative wait":      {DB: db, WaitTimeout: -1},
		"wait too long":      {DB: db, WaitTimeout: 1 << 62},
		"consumer not UTF-8": {DB: db, Consumer: "\xff"},
		"consumer with NUL":  {DB: db, Consumer: "a\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := middleware.NewInbox(cfg, nil)
			require.ErrorIs(t, err, middleware.ErrInvalidConfig)
		})
	}
	_, err := middleware.NewInbox(middleware.InboxConfig{DB: db}, nil)
	require.NoError(t, err, "everything but the database has a default")
	_, err = middleware.NewInbox(middleware.InboxConfig{Beginner: pgxtx.NewBeginner(nil)}, nil)
	require.NoError(t, err)
}

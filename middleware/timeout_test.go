package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/middleware"
)

// A handler that overruns its time leaves neither effect nor key, on whichever side
// of the inbox the Timeout stands, and whether the handler notices or not.
func TestInbox_TimeoutLeavesNothing(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	handlers := map[string]func(db database, msg *message.Message) ([]*message.Message, error){
		"the handler returns the context's error": func(_ database, msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			return nil, msg.Context().Err()
		},
		"the handler returns no error": func(_ database, msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			return nil, nil
		},
		"a statement of the handler is cancelled": func(db database, msg *message.Message) ([]*message.Message, error) {
			return nil, db.exec(msg.Context(), `SELECT pg_sleep(60)`)
		},
		"the handler ignores a cancelled statement": func(db database, msg *message.Message) ([]*message.Message, error) {
			_ = db.exec(msg.Context(), `SELECT pg_sleep(60)`)
			return nil, nil
		},
	}
	sides := map[string]func(i *middleware.Inbox, h message.HandlerFunc) message.HandlerFunc{
		"outside": func(i *middleware.Inbox, h message.HandlerFunc) message.HandlerFunc {
			return wm.Timeout(timeout)(i.Middleware(h))
		},
		"inside": func(i *middleware.Inbox, h message.HandlerFunc) message.HandlerFunc {
			return i.Middleware(wm.Timeout(timeout)(h))
		},
	}
	for sideName, side := range sides {
		for handlerName, handler := range handlers {
			t.Run(sideName+"/"+handlerName, func(t *testing.T) {
				t.Parallel()
				forEachDriver(t, func(t *testing.T, b *testBundle) {
					_, err := side(b.inbox(t), b.then(func(msg *message.Message) ([]*message.Message, error) {
						return handler(b.pool, msg)
					}))(newMessage("1"))
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.False(t, middleware.IsPermanent(err))
					require.Equal(t, counts{}, b.counts(t))

					_, err = b.wrap(t, b.debit)(newMessage("1"))
					require.NoError(t, err)
					require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
				})
			})
		}
	}
}

// A router that closes cancels its messages' contexts.
func TestInbox_CancelledContextCommitsNothing(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		ctx, cancel := context.WithCancel(t.Context())
		handle := b.wrap(t, b.then(func(*message.Message) ([]*message.Message, error) {
			cancel()
			return nil, nil
		}))
		_, err := handle(message.NewMessageWithContext(ctx, "1", nil))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, counts{}, b.counts(t))
	})
}

// The key is free as soon as the context ends: a handler that goes on regardless does
// not hold up the next delivery, and still has no effect.
func TestInbox_CancelledHandlerHoldsNoKey(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		ctx, cancel := context.WithCancel(t.Context())
		started, release := make(chan struct{}), make(chan struct{})
		handle := b.wrap(t, b.then(func(*message.Message) ([]*message.Message, error) {
			if b.runs.Load() == 1 {
				close(started)
				<-release
			}
			return nil, nil
		}))
		first := make(chan error, 1)
		go func() {
			_, err := handle(message.NewMessageWithContext(ctx, "1", []byte("created")))
			first <- err
		}()
		receive(t, started)
		cancel()
		_, err := handle(message.NewMessage("1", []byte("created")))
		close(release)
		require.NoError(t, err)
		require.ErrorIs(t, receive(t, first), context.Canceled)
		require.EqualValues(t, 2, b.runs.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

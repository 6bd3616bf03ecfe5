package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
)

// twoDeliveries handles one event twice at once: the first delivery is inside its
// handler when the second waits for its key, and then ends as end says.
func (b *testBundle) twoDeliveries(t *testing.T, end message.HandlerFunc) (first, second error) {
	t.Helper()
	started, release := make(chan struct{}), make(chan struct{})
	handle := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
		if b.runs.Load() > 1 {
			return nil, nil
		}
		close(started)
		<-release
		return end(msg)
	}))
	firstDone, secondDone := make(chan error, 1), make(chan error, 1)
	go func() { _, err := handle(newMessage("1")); firstDone <- err }()
	select {
	case <-started:
	case err := <-firstDone:
		require.NoError(t, err, "the first delivery did not reach its handler")
	}
	go func() { _, err := handle(newMessage("1")); secondDone <- err }()
	func() {
		defer close(release)
		b.requireWaiting(t)
	}()
	return receive(t, firstDone), receive(t, secondDone)
}

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

func fail(*message.Message) ([]*message.Message, error) { return nil, errHandler }

func TestInbox_ConcurrentDuplicateIsDroppedWhenTheFirstCommits(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		first, second := b.twoDeliveries(t, succeed)
		require.NoError(t, first)
		require.NoError(t, second)
		require.EqualValues(t, 1, b.runs.Load())
		require.EqualValues(t, 1, b.duplicates.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

func TestInbox_ConcurrentDuplicateIsHandledWhenTheFirstFails(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		first, second := b.twoDeliveries(t, fail)
		require.ErrorIs(t, first, errHandler)
		require.NoError(t, second)
		require.EqualValues(t, 2, b.runs.Load())
		require.Zero(t, b.duplicates.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

func TestInbox_ManyDeliveriesAtOnceHaveOneEffect(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handle := b.wrap(t, b.debit)
		const deliveries = 16
		done := make(chan error, deliveries)
		for range deliveries {
			go func() { _, err := handle(newMessage("1")); done <- err }()
		}
		for range deliveries {
			require.NoError(t, receive(t, done))
		}
		require.EqualValues(t, 1, b.runs.Load())
		require.EqualValues(t, deliveries-1, b.duplicates.Load())
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

func TestInbox_WaitIsBounded(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		holder, err := b.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, holder.Rollback()) }()
		fresh, err := b.config.Store.Record(t.Context(), holder, inbox.Key{Consumer: "payments", EventID: "1"})
		require.NoError(t, err)
		require.True(t, fresh)

		b.config.WaitTimeout = time.Nanosecond // rounded up: not zero, which waits for ever
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		_, err = b.wrap(t, b.debit)(message.NewMessageWithContext(ctx, "1", nil))
		require.ErrorIs(t, err, inbox.ErrBusy)
		require.False(t, middleware.IsPermanent(err), "it is delivered again")
		require.Zero(t, b.runs.Load())
	})
}

func TestInbox_WaitTimeoutDoesNotReachTheHandler(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		b.open(t, b.db.DSN, 1)
		for _, session := range []string{"0", "1234ms"} {
			require.NoError(t, b.pool.direct(t.Context(), `SET lock_timeout = '`+session+`'`))
			var got string
			_, err := b.wrap(t, func(msg *message.Message) ([]*message.Message, error) {
				return nil, b.pool.scan(msg.Context(), `SHOW lock_timeout`, &got)
			})(newMessage(session))
			require.NoError(t, err)
			require.Equal(t, session, got)
		}
	})
}

// Whatever the role's or the database's default is, a concurrent duplicate is no
// serialization failure.
func TestInbox_IsReadCommittedUnderAnyDefault(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			forEachDriver(t, func(t *testing.T, b *testBundle) {
				b.open(t, testdb.WithSetting(t, b.db.DSN, "default_transaction_isolation", isolation), maxConns)
				var got string
				first, second := b.twoDeliveries(t, func(msg *message.Message) ([]*message.Message, error) {
					return nil, b.pool.scan(msg.Context(), `SHOW transaction_isolation`, &got)
				})
				require.NoError(t, first)
				require.NoError(t, second)
				require.Equal(t, "read committed", got)
				require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
			})
		})
	}
}

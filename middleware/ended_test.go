package middleware_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/middleware"
)

// A handler that commits and then fails would find its event dropped at the next
// delivery, with the rest of its work undone: it is told, and the event can be put aside.
func TestInbox_HandlerThatCommitsAndFails(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		_, err := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
			return nil, errors.Join(b.pool.commit(msg.Context()), errHandler)
		}))(newMessage("1"))
		require.ErrorIs(t, err, middleware.ErrTxEnded)
		require.ErrorIs(t, err, errHandler)
		require.True(t, middleware.IsPermanent(err))
		b.requireIdle(t)
	})
}

func TestInbox_HandlerThatCommitsInSQLAndFailsOnPgx(t *testing.T) {
	t.Parallel()
	b := setup(t, native)
	_, err := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
		return nil, errors.Join(b.pool.exec(msg.Context(), `COMMIT`), errHandler)
	}))(newMessage("1"))
	require.ErrorIs(t, err, middleware.ErrTxEnded)
	require.ErrorIs(t, err, errHandler)
	b.requireIdle(t)
}

// A handler that rolls back and fails has done no harm: its error is its own, and the
// next delivery is as good as ever.
func TestInbox_HandlerThatRollsBackAndFails(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handler := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
			if b.runs.Load() == 1 {
				return nil, errors.Join(b.pool.rollback(msg.Context()), errHandler)
			}
			return nil, nil
		}))
		_, err := handler(newMessage("1"))
		require.ErrorIs(t, err, errHandler)
		require.False(t, middleware.IsPermanent(err))
		require.Equal(t, counts{}, b.counts(t))
		_, err = handler(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

// A handler's other transactions may end as they like: that is an error like any other,
// and not a reason to put the event aside.
func TestInbox_AnotherTransactionHasEnded(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		handler := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
			if b.runs.Load() > 1 {
				return nil, nil
			}
			other, err := b.db.BeginTx(msg.Context(), nil)
			if err != nil {
				return nil, err
			}
			if err := other.Rollback(); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("report: %w", other.Commit())
		}))
		_, err := handler(newMessage("1"))
		require.ErrorIs(t, err, sql.ErrTxDone)
		require.False(t, middleware.IsPermanent(err), "%v", err)
		require.Equal(t, counts{}, b.counts(t))
		_, err = handler(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

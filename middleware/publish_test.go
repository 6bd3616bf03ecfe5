package middleware_test

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/middleware"
)

func returning(msgs ...*message.Message) func(*message.Message) ([]*message.Message, error) {
	return func(*message.Message) ([]*message.Message, error) { return msgs, nil }
}

func TestInbox_ReturnedMessagesGoToTheOutbox(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		// The router's publisher is the outbox's: it would fail without a transaction if
		// the middleware left the router anything to publish.
		errs := route{publish: "payment.made", publisher: b.config.Outbox}.deliver(t,
			b.then(returning(newMessage("paid-1"), newMessage("paid-2"))),
			[]message.HandlerMiddleware{b.inbox(t).Middleware},
			newMessage("1"), newMessage("1"))
		require.Equal(t, []error{nil, nil}, errs)
		require.Equal(t, counts{keys: 1, effects: 1, outbox: 2}, b.counts(t))

		var rows string
		err := b.db.QueryRowContext(t.Context(), `SELECT string_agg(destination || ' ' || id || ' ' || payload, ', ' ORDER BY seq)
			FROM `+b.db.Schema.Outbox()).Scan(&rows)
		require.NoError(t, err)
		require.Equal(t, `payment.made paid-1 {"event":"created"}, payment.made paid-2 {"event":"created"}`, rows)
	})
}

func TestInbox_RefusedReturnedMessagesLeaveNothing(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		route    route
		noOutbox bool
		msgs     []*message.Message
		err      error
	}{
		"no outbox": {
			route: route{publish: "payment.made", publisher: discard{}}, noOutbox: true,
			msgs: []*message.Message{newMessage("paid-1")}, err: middleware.ErrNoOutbox,
		},
		"no publish topic": {
			route: route{publisher: discard{}},
			msgs:  []*message.Message{newMessage("paid-1")}, err: middleware.ErrNoDestination,
		},
		"an invalid message": {
			route: route{publish: "payment.made", publisher: discard{}},
			msgs:  []*message.Message{newMessage("paid-1"), newMessage("")}, err: outbox.ErrInvalidMessage,
		},
		"a nil message": {
			route: route{publish: "payment.made", publisher: discard{}},
			msgs:  []*message.Message{nil}, err: outbox.ErrInvalidMessage,
		},
		"an invalid destination": {
			route: route{publish: strings.Repeat("x", 256), publisher: discard{}},
			msgs:  []*message.Message{newMessage("paid-1")}, err: outbox.ErrInvalidDestination,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDriver(t, func(t *testing.T, b *testBundle) {
				if test.noOutbox {
					b.config.Outbox = nil
				}
				errs := test.route.deliver(t, b.then(returning(test.msgs...)),
					[]message.HandlerMiddleware{b.inbox(t).Middleware}, newMessage("1"))
				require.ErrorIs(t, errs[0], test.err)
				require.True(t, middleware.IsPermanent(errs[0]))
				require.Equal(t, counts{}, b.counts(t))
			})
		})
	}
}

func TestInbox_FailedOutboxInsertLeavesNothing(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		_, err := b.db.ExecContext(t.Context(), `ALTER TABLE `+b.db.Schema.Outbox()+` ADD CHECK (id <> 'paid-2')`)
		require.NoError(t, err)
		errs := route{publish: "payment.made", publisher: discard{}}.deliver(t,
			b.then(returning(newMessage("paid-1"), newMessage("paid-2"))),
			[]message.HandlerMiddleware{b.inbox(t).Middleware}, newMessage("1"))
		require.Error(t, errs[0])
		require.False(t, middleware.IsPermanent(errs[0]))
		require.Equal(t, counts{}, b.counts(t))
	})
}

func TestInbox_NoReturnedMessagesNeedNoOutbox(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	b.config.Outbox = nil
	_, err := b.wrap(t, b.then(returning([]*message.Message{}...)))(newMessage("1"))
	require.NoError(t, err)
	require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
}

// discard stands for a router's publisher that would take what the middleware left.
type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }

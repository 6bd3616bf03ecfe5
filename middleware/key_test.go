package middleware_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/middleware"
)

func TestInbox_RefusesInvalidEventIDs(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	for name, test := range map[string]struct {
		id  string
		err error
	}{
		"missing":   {"", middleware.ErrNoEventID},
		"too long":  {strings.Repeat("x", 256), inbox.ErrInvalidKey},
		"not UTF-8": {"\xff", inbox.ErrInvalidKey},
		"with NUL":  {"1\x00", inbox.ErrInvalidKey},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := b.wrap(t, b.debit)(newMessage(test.id))
			require.ErrorIs(t, err, test.err)
			require.True(t, middleware.IsPermanent(err))
			require.Zero(t, b.runs.Load())
		})
	}
}

func TestInbox_EventIDFunction(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	b.config.EventID = func(msg *message.Message) (string, error) {
		if msg.Metadata.Get("broken") != "" {
			return "", errHandler
		}
		return msg.Metadata.Get("event_id"), nil
	}
	handle := b.wrap(t, b.debit)
	for _, uuid := range []string{"", "another"} {
		msg := newMessage(uuid)
		msg.Metadata.Set("event_id", "1")
		_, err := handle(msg)
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, b.runs.Load())
	require.EqualValues(t, 1, b.duplicates.Load())

	_, err := handle(newMessage("no metadata"))
	require.ErrorIs(t, err, middleware.ErrNoEventID)

	msg := newMessage("1")
	msg.Metadata.Set("broken", "yes")
	_, err = handle(msg)
	require.ErrorIs(t, err, errHandler)
	require.False(t, middleware.IsPermanent(err), "it is the function's to say")
}

func TestInbox_ConsumerIsTheHandlersNameByDefault(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	b.config.Consumer = ""
	run := func(*message.Message) ([]*message.Message, error) { b.runs.Add(1); return nil, nil }
	for _, handler := range []string{"debit", "ship"} {
		errs := route{handler: handler}.deliver(t, run,
			[]message.HandlerMiddleware{b.inbox(t).Middleware}, newMessage("1"), newMessage("1"))
		require.Equal(t, []error{nil, nil}, errs)
	}
	require.EqualValues(t, 2, b.runs.Load())

	var consumers string
	err := b.db.QueryRowContext(t.Context(), `SELECT string_agg(consumer, ' ' ORDER BY consumer) FROM `+b.db.Schema.Inbox()).Scan(&consumers)
	require.NoError(t, err)
	require.Equal(t, "debit ship", consumers)

	_, err = b.wrap(t, run)(newMessage("outside of a router"))
	require.ErrorIs(t, err, middleware.ErrNoConsumer)
	require.True(t, middleware.IsPermanent(err))
}

func TestInbox_SameIDWithOtherContent(t *testing.T) {
	t.Parallel()
	created := message.NewMessage("order-1", []byte("created"))
	cancelled := message.NewMessage("order-1", []byte("cancelled"))
	redelivered := message.NewMessage("order-1", []byte("created"))
	redelivered.Metadata.Set("reason_poisoned", "metadata is no content")

	forEachDriver(t, func(t *testing.T, b *testBundle) {
		inboxes := []message.HandlerMiddleware{b.inbox(t).Middleware}
		errs := route{}.deliver(t, b.debit, inboxes, created.Copy(), cancelled.Copy(), redelivered.Copy())
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], inbox.ErrIDReused)
		require.True(t, middleware.IsPermanent(errs[1]))
		require.NoError(t, errs[2])
		require.EqualValues(t, 1, b.runs.Load())
		require.EqualValues(t, 1, b.duplicates.Load())

		// The topic is content.
		errs = route{subscribe: "orders.v2"}.deliver(t, b.debit, inboxes, created.Copy())
		require.ErrorIs(t, errs[0], inbox.ErrIDReused)
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

func TestInbox_SameIDWithOtherContentIsDroppedIfContentIsIgnored(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	var err error
	b.config.Store, err = inbox.NewStore(inbox.Config{Schema: b.db.Schema, IgnoreContent: true})
	require.NoError(t, err)
	handle := b.wrap(t, b.debit)
	for _, payload := range []string{"created", "cancelled"} {
		_, err := handle(message.NewMessage("order-1", []byte(payload)))
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, b.runs.Load())
	require.EqualValues(t, 1, b.duplicates.Load())
}

func TestIsPermanent(t *testing.T) {
	t.Parallel()
	require.True(t, middleware.IsPermanent(errors.Join(errHandler, middleware.ErrPermanent)))
	require.False(t, middleware.IsPermanent(errHandler))
	require.False(t, middleware.IsPermanent(nil))
}

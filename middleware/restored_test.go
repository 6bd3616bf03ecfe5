package middleware_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Whatever a handler does to its message, the next attempt is at the event that was
// delivered: its key is not that of another one, nor its digest.
func TestInbox_MessageIsRestored(t *testing.T) {
	t.Parallel()
	errNoID := errors.New("no id in the metadata")
	eventIDs := map[string]func(msg *message.Message) (string, error){
		"the UUID": nil,
		"in the metadata": func(msg *message.Message) (string, error) {
			if msg.Metadata["id"] == "" {
				return "", errNoID
			}
			return msg.Metadata["id"], nil
		},
	}
	changes := map[string]func(msg *message.Message){
		"another UUID":             func(msg *message.Message) { msg.UUID = "another" },
		"a value of the metadata":  func(msg *message.Message) { msg.Metadata.Set("id", "another") },
		"other metadata":           func(msg *message.Message) { msg.Metadata = message.Metadata{} },
		"another payload":          func(msg *message.Message) { msg.Payload = []byte("decrypted") },
		"the bytes of the payload": func(msg *message.Message) { msg.Payload[0] = '?' },
	}
	for idName, eventID := range eventIDs {
		for changeName, change := range changes {
			t.Run(idName+"/"+changeName, func(t *testing.T) {
				t.Parallel()
				forEachDriver(t, func(t *testing.T, b *testBundle) {
					b.config.EventID = eventID
					handler := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
						change(msg)
						if b.runs.Load() == 1 {
							return nil, errHandler
						}
						return nil, nil
					}))
					delivered := func() *message.Message {
						msg := newMessage("1")
						msg.Metadata.Set("id", "1")
						return msg
					}
					msg := delivered()
					_, err := handler(msg)
					require.ErrorIs(t, err, errHandler)
					require.True(t, msg.Equals(delivered()), "as a Retry or the broker will give it again")
					_, err = handler(msg)
					require.NoError(t, err)
					_, err = handler(delivered())
					require.NoError(t, err)
					require.EqualValues(t, 2, b.runs.Load(), "the redelivery has no second effect")
					require.EqualValues(t, 1, b.duplicates.Load())
					require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
				})
			})
		}
	}
}

// A handler may pass its own message on, under another id: what goes to the outbox is what
// it made of it.
func TestInbox_MessageThatIsPassedOn(t *testing.T) {
	t.Parallel()
	b := setup(t, native)
	handler := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
		msg.UUID, msg.Payload = "passed-on", []byte("seen")
		msg.Metadata.Set("seen", "true")
		return []*message.Message{msg}, nil
	}))
	r := route{publish: "seen", publisher: b.config.Outbox}
	for _, err := range r.deliver(t, handler, nil, newMessage("1"), newMessage("1")) {
		require.NoError(t, err)
	}
	require.Equal(t, counts{keys: 1, effects: 1, outbox: 1}, b.counts(t))
	var id, payload, seen string
	err := b.db.QueryRowContext(t.Context(), `SELECT id, payload, metadata ->> 'seen' FROM `+b.db.Schema.Outbox()).Scan(&id, &payload, &seen)
	require.NoError(t, err)
	require.Equal(t, []string{"passed-on", "seen", "true"}, []string{id, payload, seen})
	var key string
	err = b.db.QueryRowContext(t.Context(), `SELECT event_id FROM `+b.db.Schema.Inbox()).Scan(&key)
	require.NoError(t, err)
	require.Equal(t, "1", key)
}

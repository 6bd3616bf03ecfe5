package middleware_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/middleware"
)

// The order that the doc comment of Inbox gives, with Watermill's own middlewares.
func TestInbox_InTheDocumentedOrder(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		const maxRetries = 3
		attempts := map[string]int{}
		handler := b.then(func(msg *message.Message) ([]*message.Message, error) {
			attempts[msg.UUID]++
			switch attempt := attempts[msg.UUID]; {
			case msg.UUID == "panics once" && attempt == 1:
				panic("boom")
			case msg.UUID == "fails twice" && attempt <= 2:
				return nil, errHandler
			case msg.UUID == "fails":
				return nil, errHandler
			case msg.UUID == "is refused":
				return nil, fmt.Errorf("%w: %w", middleware.ErrPermanent, errHandler)
			}
			return nil, nil
		})

		poisoned := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, nil)
		defer func() { require.NoError(t, poisoned.Close()) }()
		poison, err := poisoned.Subscribe(t.Context(), "poison")
		require.NoError(t, err)
		poisonQueue, err := wm.PoisonQueueWithFilter(poisoned, "poison", middleware.IsPermanent)
		require.NoError(t, err)
		retry := wm.Retry{
			MaxRetries:          maxRetries,
			InitialInterval:     time.Millisecond,
			ResetContextOnRetry: true,
			ShouldRetry:         func(p wm.RetryParams) bool { return !middleware.IsPermanent(p.Err) },
		}

		errs := route{}.deliver(t, handler,
			[]message.HandlerMiddleware{poisonQueue, retry.Middleware, wm.Recoverer, b.inbox(t).Middleware},
			newMessage("succeeds"), newMessage("panics once"), newMessage("fails twice"), newMessage("fails"),
			newMessage("is refused"), message.NewMessage("succeeds", []byte("other content")), newMessage("succeeds"))

		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		require.NoError(t, errs[2])
		require.ErrorIs(t, errs[3], errHandler, "a transient error is the broker's to deliver again")
		require.NoError(t, errs[4], "it is in the poison queue")
		require.NoError(t, errs[5], "it is in the poison queue")
		require.NoError(t, errs[6])
		require.Equal(t, map[string]int{
			"succeeds": 1, "panics once": 2, "fails twice": 3, "fails": 1 + maxRetries, "is refused": 1,
		}, attempts)
		require.EqualValues(t, 1, b.duplicates.Load())
		require.Equal(t, counts{keys: 3, effects: 3}, b.counts(t))

		reasons := map[string]string{}
		for range 2 {
			msg := receive(t, poison)
			reasons[string(msg.Payload)] = msg.Metadata.Get(wm.ReasonForPoisonedKey)
			require.Equal(t, "orders", msg.Metadata.Get(wm.PoisonedTopicKey))
			msg.Ack()
		}
		require.Contains(t, reasons[`{"event":"created"}`], errHandler.Error())
		require.Contains(t, reasons["other content"], "used before with different content")
	})
}

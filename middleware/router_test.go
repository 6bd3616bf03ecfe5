package middleware_test

import (
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/middleware"
)

// One inbox on the whole router: each handler is a consumer of its own, whether it
// returns messages, has no publisher, or only passes messages on by itself.
func TestInbox_OnTheWholeRouter(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		b.config.Consumer = ""
		// effect is one for each handler and event.
		effect := func(msg *message.Message) error {
			id := message.HandlerNameFromCtx(msg.Context()) + " " + msg.UUID
			return b.pool.exec(msg.Context(), `INSERT INTO `+b.effects()+` (event_id) VALUES ($1)`, id)
		}
		var settled atomic.Int64
		count := func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := next(msg)
				if err == nil {
					settled.Add(1)
				}
				return produced, err
			}
		}
		relayed := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, nil)
		defer func() { require.NoError(t, relayed.Close()) }()
		relayedMessages, err := relayed.Subscribe(t.Context(), "elsewhere")
		require.NoError(t, err)

		pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
		router := message.NewDefaultRouter(nil)
		router.AddMiddleware(count,
			poisonQueue(t, middleware.PoisonPublisher(ownTransaction{b}, wait), "poison", middleware.IsPermanent),
			retry(1), breaker(gobreaker.Settings{}), wm.Recoverer, wm.Timeout(wait), b.inbox(t).Middleware)
		router.AddHandler("debit", "orders", pubSub, "payment.made", b.config.Outbox,
			func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{newMessage("paid " + msg.UUID)}, effect(msg)
			})
		router.AddConsumerHandler("ship", "orders", pubSub, effect)
		// What it passes on is outside of the transaction, and so the handler's own business.
		router.AddHandler("relay", "orders", pubSub, "unused", b.config.Outbox,
			func(msg *message.Message) ([]*message.Message, error) {
				if err := relayed.Publish("elsewhere", msg.Copy()); err != nil {
					return nil, err
				}
				return nil, effect(msg)
			})
		// A handler that gets another topic and no messages does not mind.
		router.AddConsumerHandler("silent", "nothing", pubSub, effect)
		stop := start(t, router)
		defer stop()

		deliveries := []string{"1", "2", "1", "2"}
		for n, id := range deliveries {
			require.NoError(t, pubSub.Publish("orders", newMessage(id)))
			require.Eventually(t, func() bool { return settled.Load() == int64(3*(n+1)) }, wait, tick)
		}
		require.Equal(t, counts{keys: 6, effects: 6, outbox: 2}, b.counts(t))
		require.EqualValues(t, 6, b.duplicates.Load())
		for _, id := range []string{"1", "2"} {
			msg := receive(t, relayedMessages)
			require.Equal(t, id, msg.UUID)
			msg.Ack()
		}
		require.Empty(t, relayedMessages)

		var consumers string
		err = b.db.QueryRowContext(t.Context(), `SELECT string_agg(consumer || ' ' || event_id, ', ' ORDER BY consumer, event_id)
			FROM `+b.db.Schema.Inbox()).Scan(&consumers)
		require.NoError(t, err)
		require.Equal(t, "debit 1, debit 2, relay 1, relay 2, ship 1, ship 2", consumers)
	})
}

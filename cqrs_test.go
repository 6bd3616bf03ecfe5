package outbox_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
)

type orderCreated struct {
	OrderID string `json:"order_id"`
}

// Watermill's EventBus publishes through the outbox: its events commit with the
// caller's transaction, or not at all.
func TestCQRSEventBus(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := setup(t, driver)
			bus, err := cqrs.NewEventBusWithConfig(b.publisher, cqrs.EventBusConfig{
				GeneratePublishTopic: func(params cqrs.GenerateEventPublishTopicParams) (string, error) {
					return "events." + params.EventName, nil
				},
				Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
			})
			require.NoError(t, err)
			require.ErrorIs(t, bus.Publish(t.Context(), orderCreated{"0"}), outbox.ErrNoTx)

			rolledBack := b.begin(t)
			require.NoError(t, bus.Publish(outbox.ContextWithTx(t.Context(), rolledBack), orderCreated{"1"}))
			require.NoError(t, rolledBack.Rollback())

			tx := b.begin(t)
			require.NoError(t, bus.Publish(outbox.ContextWithTx(t.Context(), tx), orderCreated{"2"}))
			require.NoError(t, tx.Commit())
			rows := b.stored(t)
			require.Len(t, rows, 1)
			require.Equal(t, "events.orderCreated", rows[0].Destination)
			require.JSONEq(t, `{"order_id":"2"}`, string(rows[0].Payload))
			require.Equal(t, "orderCreated", rows[0].Metadata.Get("name"))
		})
	}
}

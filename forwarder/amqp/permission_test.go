package amqp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A destination that the user may not use waits, without an attempt; the others go on;
// and with the permission it goes too.
func TestPermissions(t *testing.T) {
	t.Parallel()
	rabbit := testamqp.StartBroker(t)
	connection, err := amqp091.Dial(rabbit.URI())
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	declare := func(exchange, exchangeType string, keys ...string) {
		channel, err := connection.Channel()
		require.NoError(t, err)
		require.NoError(t, channel.ExchangeDeclare(exchange, exchangeType, true, false, false, false, nil))
		_, err = channel.QueueDeclare("of-"+exchange, true, false, false, false, nil)
		require.NoError(t, err)
		for _, key := range keys {
			require.NoError(t, channel.QueueBind("of-"+exchange, key, exchange, false, nil))
		}
	}
	// user returns the address of a new user, with regular expressions of what it may do.
	user := func(name, configure, write string) string {
		rabbit.Control(t, "add_user", name, "secret")
		rabbit.Control(t, "set_permissions", name, configure, write, "^$")
		return strings.Replace(rabbit.URI(), "outbox:outbox", name+":secret", 1)
	}

	t.Run("queues", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		publisher := newPublisher(t, amqp.NewQueueConfig(user("queues", "^ours", "^amq.default$")))
		err := publish(t, publisher, outgoing("theirs", "a", "1", "x"))[0]
		require.ErrorIs(t, err, forwarder.ErrDestinationUnavailable)
		require.ErrorContains(t, err, "ACCESS_REFUSED - access to queue 'theirs'")
		insert(t, db, "theirs", "a", ids("k1", 3)...)
		insert(t, db, "ours", "a", ids("k2", 3)...)
		runForwarder(t, db, publisher)
		require.Eventually(t, func() bool { return outboxRows(t, db, `destination = 'ours'`) == 0 }, patience, 5*time.Millisecond)
		require.Equal(t, 3, outboxRows(t, db, `destination = 'theirs' AND attempts = 0`))
		rabbit.Control(t, "set_permissions", "queues", "^(ours|theirs)", "^amq.default$", "^$")
		requireDrained(t, db)
		requireInOrder(t, drain(t, rabbit.URI(), "theirs"), map[string]int{"1": 3})
	})

	t.Run("exchanges", func(t *testing.T) {
		t.Parallel()
		declare("ours-fanout", "fanout", "")
		declare("theirs-fanout", "fanout", "")
		db := testdb.New(t)
		// May not configure anything: the exchanges are used as they are.
		cfg := amqp.NewPubSubConfig(user("exchanges", "^$", "^ours"))
		declaring := publish(t, newPublisher(t, cfg), outgoing("ours-fanout", "a", "1", "x"))[0]
		require.ErrorIs(t, declaring, forwarder.ErrDestinationUnavailable)
		require.ErrorContains(t, declaring, `declare exchange "ours-fanout" (fanout)`)
		cfg.ExistingExchanges = true
		publisher := newPublisher(t, cfg)
		err := publish(t, publisher, outgoing("theirs-fanout", "a", "1", "x"))[0]
		require.ErrorIs(t, err, forwarder.ErrDestinationUnavailable)
		require.ErrorContains(t, err, "ACCESS_REFUSED - access to exchange 'theirs-fanout'")
		insert(t, db, "theirs-fanout", "a", ids("k1", 3)...)
		insert(t, db, "ours-fanout", "a", ids("k2", 3)...)
		runForwarder(t, db, publisher)
		require.Eventually(t, func() bool { return outboxRows(t, db, `destination = 'ours-fanout'`) == 0 }, patience, 5*time.Millisecond)
		requireInOrder(t, drain(t, rabbit.URI(), "of-ours-fanout"), map[string]int{"2": 3})
		require.Equal(t, 3, outboxRows(t, db, `destination = 'theirs-fanout' AND attempts = 0`))
		rabbit.Control(t, "set_permissions", "exchanges", "^$", ".*", "^$")
		requireDrained(t, db)
	})

	// RabbitMQ can forbid single routing keys, and closes the channel over one.
	t.Run("routing keys", func(t *testing.T) {
		t.Parallel()
		declare("events", "topic", "#")
		cfg := amqp.NewTopicConfig(user("keys", "^events$", "^events$"), "")
		rabbit.Control(t, "set_topic_permissions", "keys", "events", "^ours", "^$")
		const key = amqp.DefaultRoutingKeyMetadata
		msgs := make([]forwarder.Outgoing, 0, 21)
		for _, id := range ids("k1", 20) {
			msgs = append(msgs, withMetadata(outgoing("events", id, id, "x"), key, "ours"))
		}
		msgs = append(msgs, withMetadata(outgoing("events", "b", "bad", "x"), key, "theirs"))
		msgs[3], msgs[20] = msgs[20], msgs[3]
		for i, err := range publish(t, newPublisher(t, cfg), msgs...) {
			if i != 3 {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, forwarder.ErrDestinationUnavailable)
			require.ErrorContains(t, err, "ACCESS_REFUSED")
		}
	})
}

package amqp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// bind declares an exchange and binds queues of the test to it, by their routing keys.
func bind(t *testing.T, exchange, exchangeType string, routingKeys ...string) (queues []string) {
	t.Helper()
	channel := testamqp.Channel(t)
	require.NoError(t, channel.ExchangeDeclare(exchange, exchangeType, true, false, false, false, nil))
	testamqp.DeleteExchangeAfter(t, exchange)
	for _, key := range routingKeys {
		queue := testamqp.NewQueue(t, nil)
		require.NoError(t, channel.QueueBind(queue, key, exchange, false, nil))
		queues = append(queues, queue)
	}
	return queues
}

func withMetadata(msg forwarder.Outgoing, metadata ...string) forwarder.Outgoing {
	for pair := range slices.Chunk(metadata, 2) {
		msg.Message.Metadata.Set(pair[0], pair[1])
	}
	return msg
}

func uris(configs ...func(uri string) amqp.Config) (made []amqp.Config) {
	for _, config := range configs {
		made = append(made, config(testamqp.URI()))
	}
	return made
}

// One exchange for all: the destination is the routing key.
func TestDestinationAsRoutingKey(t *testing.T) {
	t.Parallel()
	for exchangeType, newConfig := range map[string]func(uri, exchange string) amqp.Config{
		"topic": amqp.NewTopicConfig, "direct": amqp.NewDirectConfig,
	} {
		t.Run(exchangeType, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			exchange := testamqp.Name(t)
			bound := bind(t, exchange, exchangeType, "orders.created", "orders.paid")
			runForwarder(t, db, newPublisher(t, newConfig(testamqp.URI(), exchange)))
			insert(t, db, "orders.lost", "a", "l-1")
			insert(t, db, "orders.created", "a", ids("c", 5)...)
			insert(t, db, "orders.paid", "a", ids("p", 5)...)
			require.Equal(t, ids("c", 5), takeIDs(t, bound[0], 5))
			require.Equal(t, ids("p", 5), takeIDs(t, bound[1], 5))

			// No queue is bound for the third: it waits and spends no attempt.
			require.Eventually(t, func() bool { return outboxRows(t, db, `true`) == 1 }, patience, 5*time.Millisecond)
			require.Equal(t, 1, outboxRows(t, db, `id = 'l-1' AND attempts = 0`))
			late := testamqp.NewQueue(t, nil)
			require.NoError(t, testamqp.Channel(t).QueueBind(late, "orders.lost", exchange, false, nil))
			require.Equal(t, []string{"l-1"}, takeIDs(t, late, 1))
			requireDrained(t, db)
		})
	}
}

// watermill-amqp's own subscriber binds its queue by a pattern.
func TestWatermillSubscriberOnATopicExchange(t *testing.T) {
	t.Parallel()
	exchange := testamqp.Name(t)
	testamqp.DeleteExchangeAfter(t, exchange)
	cfg := amqp.NewTopicConfig(testamqp.URI(), exchange)
	subscriber := cfg.AMQP
	subscriber.Queue.GenerateName = wmamqp.GenerateQueueNameTopicNameWithSuffix(exchange)
	subscriber.QueueBind.GenerateRoutingKey = func(queue string) string { return strings.TrimSuffix(queue, "_"+exchange) }
	testamqp.DeleteQueueAfter(t, "orders.*_"+exchange)
	received := subscribe(t, subscriber, "orders.*")
	require.NoError(t, publish(t, newPublisher(t, cfg), outgoing("orders.created", "a", "1", "x"))[0])
	require.Equal(t, "1", receive(t, received).UUID)
}

// The exchange is the destination, or stands in the metadata; the routing key stands in
// the metadata. Where it is the default exchange, the routing key is a queue's name.
func TestWaysThatMessagesChoose(t *testing.T) {
	t.Parallel()
	exchange := testamqp.Name(t)
	bound := bind(t, exchange, "topic", "eu.#", "us.#")
	byKey := amqp.NewTopicConfig(testamqp.URI(), "")
	byBoth := byKey
	byBoth.ExchangeMetadata = "exchange"
	byExchange := amqp.NewTopicConfig(testamqp.URI(), testamqp.Name(t)) // not the one
	byExchange.ExchangeMetadata = "exchange"
	byQueue := queues()
	byQueue.RoutingKeyMetadata = "queue"
	const key = amqp.DefaultRoutingKeyMetadata
	for name, test := range map[string]struct {
		config amqp.Config
		eu, us forwarder.Outgoing
	}{
		"routing key": {
			byKey,
			withMetadata(outgoing(exchange, "a", "eu", "x"), key, "eu.created"),
			withMetadata(outgoing(exchange, "b", "us", "x"), key, "us.created"),
		},
		"exchange and routing key": {
			byBoth,
			withMetadata(outgoing("any", "a", "eu", "x"), key, "eu.created", "exchange", exchange),
			withMetadata(outgoing("any", "b", "us", "x"), key, "us.created", "exchange", exchange),
		},
		"exchange": {
			byExchange,
			withMetadata(outgoing("eu.created", "a", "eu", "x"), "exchange", exchange),
			withMetadata(outgoing("us.created", "b", "us", "x"), "exchange", exchange),
		},
		"queue": {
			byQueue,
			withMetadata(outgoing("any", "a", "eu", "x"), "queue", bound[0]),
			withMetadata(outgoing("any", "b", "us", "x"), "queue", bound[1]),
		},
	} {
		for _, err := range publish(t, newPublisher(t, test.config), test.eu, test.us) {
			require.NoError(t, err, name)
		}
		for i, want := range []forwarder.Outgoing{test.eu, test.us} {
			delivery := testamqp.Take(t, bound[i], 1)[0]
			require.Equal(t, want.Message.UUID, delivery.MessageId, name)
			for key, value := range want.Message.Metadata {
				require.Equal(t, value, delivery.Headers[key], "it stays on the message")
			}
			require.Zero(t, testamqp.Length(t, bound[i]), name)
		}
	}
}

// One message that says nothing, nonsense, or names what nobody listens to, holds back its
// own unit, and not its destination.
func TestMessageWithoutAWayFailsAlone(t *testing.T) {
	t.Parallel()
	const key = amqp.DefaultRoutingKeyMetadata
	exchange := testamqp.Name(t)
	bound := bind(t, exchange, "direct", "good")
	both := amqp.NewDirectConfig(testamqp.URI(), "")
	both.ExchangeMetadata = "exchange"
	good := func(id string) forwarder.Outgoing {
		return withMetadata(outgoing(exchange, id, id, "x"), key, "good", "exchange", exchange)
	}
	for name, test := range map[string]struct {
		config   amqp.Config
		metadata []string
		text     string
	}{
		"no key":            {amqp.NewDirectConfig(testamqp.URI(), ""), nil, `the metadata key "` + key + `", which names the routing key, is missing or empty`},
		"empty key":         {amqp.NewDirectConfig(testamqp.URI(), ""), []string{key, ""}, "is missing or empty"},
		"long key":          {amqp.NewDirectConfig(testamqp.URI(), ""), []string{key, strings.Repeat("k", 256)}, "routing key: a name is too long for AMQP"},
		"nobody listens":    {amqp.NewDirectConfig(testamqp.URI(), ""), []string{key, "bad"}, `no queue took the message: 312 NO_ROUTE (exchange "` + exchange + `", routing key "bad")`},
		"no exchange":       {both, []string{key, "good"}, `"exchange", which names the exchange, is missing or empty`},
		"long exchange":     {both, []string{key, "good", "exchange", strings.Repeat("e", 256)}, "exchange: a name is too long"},
		"absent exchange":   {both, []string{key, "good", "exchange", exchange + "-absent"}, "NOT_FOUND"},
		"nobody, exchange":  {both, []string{key, "bad", "exchange", exchange}, "NO_ROUTE"},
		"nobody, by header": {byHeaders(), []string{"region", "us"}, "NO_ROUTE"},
	} {
		msgs := []forwarder.Outgoing{
			good("1"), withMetadata(outgoing(exchange, "b", "bad", "x"), test.metadata...), good("3"), good("4"),
			withMetadata(outgoing(exchange, "b", "behind", "x"), key, "good", "exchange", exchange),
		}
		expect := bound[0]
		if test.config.AMQP.Exchange.Type == "headers" {
			msgs, expect = headersCase(t, msgs, test.metadata)
		}
		results := publish(t, newPublisher(t, test.config), msgs...)
		for i, err := range results {
			switch i {
			case 1:
				want := forwarder.ErrRefused
				if strings.Contains(test.text, "NO_ROUTE") || test.text == "NOT_FOUND" { // somebody may listen later
					want = forwarder.ErrRouteUnavailable
				}
				require.ErrorIs(t, err, want, name)
				require.NotErrorIs(t, err, forwarder.ErrDestinationUnavailable, name)
				require.ErrorContains(t, err, test.text, name)
			case 4:
				require.ErrorIs(t, err, forwarder.ErrKeyHeld, name)
			default:
				require.NoError(t, err, name)
			}
		}
		got := takeIDs(t, expect, 3)
		slices.Sort(got)
		require.Equal(t, []string{"1", "3", "4"}, got, name)
	}
}

func byHeaders() amqp.Config {
	cfg := amqp.NewPubSubConfig(testamqp.URI())
	cfg.AMQP.Exchange.Type = "headers"
	return cfg
}

// headersCase sends the messages to an exchange that routes by headers.
func headersCase(t *testing.T, msgs []forwarder.Outgoing, bad []string) ([]forwarder.Outgoing, string) {
	t.Helper()
	exchange := testamqp.Name(t)
	bind(t, exchange, "headers")
	queue := testamqp.NewQueue(t, nil)
	require.NoError(t, testamqp.Channel(t).QueueBind(queue, "", exchange, false, amqp091.Table{"x-match": "all", "region": "eu"}))
	for i := range msgs {
		msgs[i].Destination = exchange
		msgs[i].Message.Metadata.Set("region", "eu")
	}
	withMetadata(msgs[1], bad...)
	return msgs, queue
}

// The whole way, with rows: units whose routing keys nobody listens to wait, the others
// of the destination go on, and each unit keeps its order across routing keys.
func TestForwarderRoutesByMetadata(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exchange := testamqp.Name(t)
	bound := bind(t, exchange, "topic", "orders.#")
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.Schema}, nil)
	require.NoError(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	for n := range 60 {
		msg := message.NewMessage(fmt.Sprintf("k%d-%d", n%3, n/3+1), []byte("x"))
		msg.Metadata.Set(outbox.PartitionKeyMetadata, fmt.Sprint(n%3))
		msg.Metadata.Set(amqp.DefaultRoutingKeyMetadata, fmt.Sprintf("orders.%d", n%7))
		if n == 0 { // the first of the unit 0
			msg.Metadata.Set(amqp.DefaultRoutingKeyMetadata, "nobody")
		}
		require.NoError(t, publisher.PublishTx(t.Context(), tx, exchange, msg))
	}
	require.NoError(t, tx.Commit())
	runForwarder(t, db, newPublisher(t, amqp.NewTopicConfig(testamqp.URI(), "")))

	require.Eventually(t, func() bool { return outboxRows(t, db, `true`) == 20 }, patience, 5*time.Millisecond)
	require.Eventually(t, func() bool {
		return outboxRows(t, db, `id = 'k0-1' AND next_attempt_at > created_at + interval '1 second' AND last_error LIKE '%NO_ROUTE%"nobody"%'`) == 1
	}, patience, 5*time.Millisecond)
	require.Equal(t, 20, outboxRows(t, db, `partition_key = '0' AND attempts = 0`), "no attempt is spent")
	requireInOrder(t, takeIDs(t, bound[0], 40), map[string]int{"1": 20, "2": 20})

	require.NoError(t, testamqp.Channel(t).QueueBind(bound[0], "nobody", exchange, false, nil))
	requireInOrder(t, takeIDs(t, bound[0], 20), map[string]int{"0": 20})
	requireDrained(t, db)
}

// requireInOrder reads ids of the form k1-2: unit 1, its second.
func requireInOrder(t *testing.T, got []string, want map[string]int) {
	t.Helper()
	last := map[string]int{}
	for _, id := range got {
		var unit, n int
		_, err := fmt.Sscanf(id, "k%d-%d", &unit, &n)
		require.NoError(t, err)
		require.Equal(t, last[fmt.Sprint(unit)]+1, n, "unit %d", unit)
		last[fmt.Sprint(unit)] = n
	}
	require.Equal(t, want, last)
}

// An exchange that must exist, and does not, holds back its own destination only; once it
// is there, the messages go.
func TestExistingExchanges(t *testing.T) {
	t.Parallel()
	for _, cfg := range uris(amqp.NewPubSubConfig, func(uri string) amqp.Config { return amqp.NewTopicConfig(uri, "") }) {
		cfg.ExistingExchanges = true
		missing, there := testamqp.Name(t), testamqp.Name(t)
		bound := bind(t, there, cfg.AMQP.Exchange.Type, "key")
		publisher := newPublisher(t, cfg)
		send := func() []error {
			return publish(t, publisher,
				withMetadata(outgoing(missing, "a", "1", "x"), amqp.DefaultRoutingKeyMetadata, "key"),
				withMetadata(outgoing(there, "a", "2", "x"), amqp.DefaultRoutingKeyMetadata, "key"))
		}
		results := send()
		require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable)
		require.ErrorContains(t, results[0], "NOT_FOUND")
		require.NoError(t, results[1])
		bind(t, missing, cfg.AMQP.Exchange.Type, "key")
		for _, err := range send() {
			require.NoError(t, err)
		}
		require.Equal(t, []string{"2", "2"}, takeIDs(t, bound[0], 2))
	}
}

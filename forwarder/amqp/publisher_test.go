package amqp_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
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

// The whole way: rows arrive at watermill-amqp's subscriber, bytes and headers and all,
// through queues and through fanout exchanges.
func TestCommittedRowsReachWatermillSubscriber(t *testing.T) {
	t.Parallel()
	for name, configs := range map[string]struct {
		publisher  amqp.Config
		subscriber wmamqp.Config
	}{
		"queue": {amqp.NewQueueConfig(testamqp.URI()), wmamqp.NewDurableQueueConfig(testamqp.URI())},
		"fanout": {
			amqp.NewPubSubConfig(testamqp.URI()),
			wmamqp.NewDurablePubSubConfig(testamqp.URI(), wmamqp.GenerateQueueNameTopicNameWithSuffix("service")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			destination := testamqp.Name(t)
			testamqp.DeleteQueueAfter(t, destination)
			testamqp.DeleteQueueAfter(t, destination+"_service")
			testamqp.DeleteExchangeAfter(t, destination)
			runForwarder(t, db, newPublisher(t, configs.publisher))
			publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.Schema}, nil)
			require.NoError(t, err)

			sent := message.NewMessage("go-1", []byte{0, 1, 0xff, 0xfe})
			sent.Metadata = message.Metadata{"type": "order.created", "empty": "", "text": "é\n\\"}
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, publisher.PublishTx(t.Context(), tx, destination, sent))
			require.NoError(t, tx.Commit())

			subscriber, err := testamqp.NewSubscriber(configs.subscriber, watermill.NopLogger{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
			received, err := subscriber.Subscribe(t.Context(), destination)
			require.NoError(t, err)
			select {
			case msg := <-received:
				require.Equal(t, sent.UUID, msg.UUID)
				require.Equal(t, []byte(sent.Payload), []byte(msg.Payload))
				require.Equal(t, sent.Metadata, msg.Metadata)
				msg.Ack()
			case <-time.After(patience):
				require.Fail(t, "no message came")
			}
			requireDrained(t, db)
		})
	}
}

func TestMessagesArePersistentAndCarryTheirID(t *testing.T) {
	t.Parallel()
	queue := testamqp.NewQueue(t, nil)
	require.NoError(t, newPublisher(t, queues()).Publish(queue, message.NewMessage("1", []byte("x"))))
	delivery := testamqp.Take(t, queue, 1)[0]
	require.Equal(t, "1", delivery.MessageId)
	require.Equal(t, amqp091.Persistent, delivery.DeliveryMode)
	require.Equal(t, amqp091.Table{"_watermill_message_uuid": "1"}, delivery.Headers)
}

func TestBatchKeepsOrderWithinKeys(t *testing.T) {
	t.Parallel()
	queue := testamqp.NewQueue(t, nil)
	publisher := newPublisher(t, queues())
	var msgs []forwarder.Outgoing
	for n := range 3000 {
		key := fmt.Sprint(n % 7)
		if n >= 1000 {
			key = fmt.Sprint(n) // more in one wave than goes out at once
		}
		msgs = append(msgs, outgoing(queue, key, fmt.Sprint(n), "x"))
	}
	for _, err := range publish(t, publisher, msgs...) {
		require.NoError(t, err)
	}
	last := map[int]int{}
	for _, id := range takeIDs(t, queue, 3000) {
		var n int
		_, err := fmt.Sscan(id, &n)
		require.NoError(t, err)
		if n < 1000 {
			require.GreaterOrEqual(t, n, last[n%7])
			last[n%7] = n
		}
	}
}

// RabbitMQ confirms what no queue took. It must not count as sent, and it hits neither
// the other destinations nor what comes later.
func TestUnroutableIsNoSuccess(t *testing.T) {
	t.Parallel()
	queue, nowhere := testamqp.NewQueue(t, nil), testamqp.Name(t)
	publisher := newPublisher(t, queues())
	results := publish(t, publisher,
		outgoing(nowhere, "a", "1", "x"), outgoing(queue, "a", "2", "x"), outgoing(nowhere, "a", "3", "x"), outgoing(nowhere, "b", "4", "x"))
	require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable)
	require.ErrorContains(t, results[0], "NO_ROUTE")
	require.NoError(t, results[1])
	require.ErrorIs(t, results[2], forwarder.ErrKeyHeld)
	require.ErrorIs(t, results[3], forwarder.ErrDestinationUnavailable)
	testamqp.DeclareQueue(t, nowhere, nil)
	require.NoError(t, publish(t, publisher, outgoing(nowhere, "a", "1", "x"))[0])
	require.Equal(t, []string{"1"}, takeIDs(t, nowhere, 1))
}

func TestThousandsOfReturnedMessagesAreAllSeen(t *testing.T) {
	t.Parallel()
	nowhere := testamqp.Name(t)
	var msgs []forwarder.Outgoing
	for _, id := range ids("m", 2500) {
		msgs = append(msgs, outgoing(nowhere, id, id, "x"))
	}
	for _, err := range publish(t, newPublisher(t, queues()), msgs...) {
		require.ErrorIs(t, err, forwarder.ErrDestinationUnavailable)
	}
}

// A missing exchange closes the channel; only its own destination fails.
func TestMissingExchangeFailsAlone(t *testing.T) {
	t.Parallel()
	missing, there := testamqp.Name(t), testamqp.Name(t)
	cfg := amqp.NewPubSubConfig(testamqp.URI())
	cfg.AMQP.TopologyBuilder = &passive{}
	channel := testamqp.Channel(t)
	require.NoError(t, channel.ExchangeDeclare(there, "fanout", true, false, false, false, nil))
	testamqp.DeleteExchangeAfter(t, there)
	queue := testamqp.NewQueue(t, nil)
	require.NoError(t, channel.QueueBind(queue, "", there, false, nil))

	publisher := newPublisher(t, cfg)
	var msgs []forwarder.Outgoing
	for _, id := range ids("m", 50) {
		msgs = append(msgs, outgoing(missing, id, "missing-"+id, "x"), outgoing(there, id, id, "x"))
	}
	for i, err := range publish(t, publisher, msgs...) {
		if i%2 == 1 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, forwarder.ErrDestinationUnavailable)
		require.ErrorContains(t, err, "NOT_FOUND")
	}
	require.Equal(t, ids("m", 50), takeIDs(t, queue, 50))
}

// passive declares nothing.
type passive struct{ wmamqp.DefaultTopologyBuilder }

func (passive) ExchangeDeclare(*amqp091.Channel, string, wmamqp.Config) error { return nil }

func TestExchangeThatCannotBeDeclared(t *testing.T) {
	t.Parallel()
	name := testamqp.Name(t)
	require.NoError(t, testamqp.Channel(t).ExchangeDeclare(name, "direct", true, false, false, false, nil))
	testamqp.DeleteExchangeAfter(t, name)
	err := publish(t, newPublisher(t, amqp.NewPubSubConfig(testamqp.URI())), outgoing(name, "a", "1", "x"))[0]
	require.ErrorIs(t, err, forwarder.ErrDestinationUnavailable)
	require.ErrorContains(t, err, "declare exchange")
}

// An exchange that no queue is bound to yet: the rows wait, in order, and none is lost.
func TestExchangeWithoutBindingHoldsBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	exchange, queue := testamqp.Name(t), testamqp.NewQueue(t, nil)
	testamqp.DeleteExchangeAfter(t, exchange)
	insert(t, db, exchange, "a", ids("a", 5)...)
	publisher := newPublisher(t, amqp.NewPubSubConfig(testamqp.URI()))
	unroutable := publish(t, publisher, outgoing(exchange, "a", "direct", "x"))[0] // it declares the exchange
	require.ErrorIs(t, unroutable, forwarder.ErrDestinationUnavailable)
	runForwarder(t, db, publisher)
	other := testamqp.NewQueue(t, nil)
	require.NoError(t, testamqp.Channel(t).ExchangeDeclare(other, "fanout", true, false, false, false, nil))
	testamqp.DeleteExchangeAfter(t, other)
	require.NoError(t, testamqp.Channel(t).QueueBind(other, "", other, false, nil))
	insert(t, db, other, "a", "o-1")
	require.Equal(t, []string{"o-1"}, takeIDs(t, other, 1), "other destinations go on")
	require.Equal(t, 5, outboxRows(t, db, `partition_key = 'a' AND id <> 'o-1' AND attempts = 0 AND next_attempt_at IS NULL`))

	require.NoError(t, testamqp.Channel(t).QueueBind(queue, "", exchange, false, nil))
	require.Equal(t, ids("a", 5), takeIDs(t, queue, 5))
	requireDrained(t, db)
}

// What this publisher sends is what watermill-amqp's own sends, but for the message-id;
// so either may write to a queue, and its subscribers see no difference.
func TestSameOnTheWireAsWatermillPublisher(t *testing.T) {
	t.Parallel()
	queue := testamqp.NewQueue(t, nil)
	msg := message.NewMessage("1", []byte{0, 0xff, '\n'})
	msg.Metadata = message.Metadata{"type": "order.created", "empty": "", "text": "é\n\\"}
	stock, err := wmamqp.NewPublisher(wmamqp.NewDurableQueueConfig(testamqp.URI()), watermill.NopLogger{})
	require.NoError(t, err)
	require.NoError(t, stock.Publish(queue, msg))
	require.NoError(t, stock.Close())
	require.NoError(t, newPublisher(t, queues()).Publish(queue, msg))

	deliveries := testamqp.Take(t, queue, 2)
	theirs, ours := deliveries[0], deliveries[1]
	require.Equal(t, theirs.Body, ours.Body)
	require.Equal(t, theirs.Headers, ours.Headers)
	require.Equal(t, theirs.DeliveryMode, ours.DeliveryMode)
	require.Equal(t, theirs.RoutingKey, ours.RoutingKey)
	require.Empty(t, theirs.MessageId)
	require.Equal(t, "1", ours.MessageId)
}

// A full queue rejects: nothing that it rejected counts as sent, and the unit's order
// holds when there is space again.
func TestFullQueueHoldsBackAndKeepsOrder(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	full := testamqp.NewQueue(t, amqp091.Table{"x-max-length": 3, "x-overflow": "reject-publish"})
	other := testamqp.NewQueue(t, nil)
	insert(t, db, full, "a", ids("a", 10)...)
	insert(t, db, other, "a", ids("o", 10)...)
	runForwarder(t, db, newPublisher(t, queues()))

	require.Equal(t, ids("o", 10), takeIDs(t, other, 10))
	require.Eventually(t, func() bool { return outboxRows(t, db, `true`) == 7 }, patience, 5*time.Millisecond)
	require.Equal(t, 7, outboxRows(t, db, `attempts = 0 AND last_error IS NULL`))
	require.Equal(t, ids("a", 10), takeIDs(t, full, 10), "taking makes space")
	requireDrained(t, db)
}

func TestDeclaredQueueIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	queue := testamqp.Name(t)
	testamqp.DeleteQueueAfter(t, queue)
	publisher := newPublisher(t, amqp.NewQueueConfig(testamqp.URI()))
	runForwarder(t, db, publisher)
	insert(t, db, queue, "a", "a-1")
	requireDrained(t, db)
	require.Equal(t, []string{"a-1"}, takeIDs(t, queue, 1))
	testamqp.DeleteQueue(t, queue)
	insert(t, db, queue, "a", "a-2", "a-3")
	requireDrained(t, db)
	require.Equal(t, []string{"a-2", "a-3"}, takeIDs(t, queue, 2))
}

func TestMessagesThatAMQPCannotCarryAreRefused(t *testing.T) {
	t.Parallel()
	queue := testamqp.NewQueue(t, nil)
	longName, manyHeaders, reserved := outgoing(queue, "a", "1", "x"), outgoing(queue, "b", "2", "x"), outgoing(queue, "c", "3", "x")
	longName.Message.Metadata.Set(strings.Repeat("k", 256), "v")
	manyHeaders.Message.Metadata.Set("k", strings.Repeat("v", 200_000))
	reserved.Message.Metadata.Set("_watermill_message_uuid", "other")
	results := publish(t, newPublisher(t, queues()), longName, manyHeaders, reserved, outgoing(queue, "a", "4", "x"), outgoing(queue, "d", "5", "x"))
	require.ErrorIs(t, results[0], forwarder.ErrRefused)
	require.ErrorContains(t, results[0], "has 256 bytes, at most 255")
	require.ErrorIs(t, results[1], forwarder.ErrRefused)
	require.ErrorContains(t, results[1], "too large for one AMQP frame")
	require.ErrorIs(t, results[2], forwarder.ErrRefused)
	require.ErrorIs(t, results[3], forwarder.ErrKeyHeld)
	require.NoError(t, results[4])
	require.Equal(t, []string{"5"}, takeIDs(t, queue, 1))
}

func TestClosedAndAbsentBroker(t *testing.T) {
	t.Parallel()
	publisher := newPublisher(t, queues())
	require.NoError(t, publisher.Close())
	require.NoError(t, publisher.Close(), "closing twice does no harm")
	err := publish(t, publisher, outgoing("x", "a", "1", "x"))[0]
	require.ErrorIs(t, err, amqp.ErrClosed)
	require.ErrorIs(t, err, forwarder.ErrUnavailable)

	err = publish(t, newPublisher(t, amqp.NewQueueConfig("amqp://outbox:wrong@"+address(t))), outgoing("x", "a", "1", "x"))[0]
	require.ErrorIs(t, err, forwarder.ErrUnavailable)
	err = publish(t, newPublisher(t, amqp.NewQueueConfig("amqp://127.0.0.1:1/")), outgoing("x", "a", "1", "x"))[0]
	require.ErrorIs(t, err, forwarder.ErrUnavailable)
}

func address(t *testing.T) string {
	t.Helper()
	uri, err := amqp091.ParseURI(testamqp.URI())
	require.NoError(t, err)
	return net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port))
}

// proxy stands between a publisher and the broker. It can fall silent, and cut.
type proxy struct {
	mu     sync.Mutex
	silent bool
	conns  []net.Conn
	after  int64 // bytes from the client until it falls silent; 0: never
}

func (p *proxy) dial(network, addr string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: patience}
	broker, err := dialer.DialContext(context.Background(), network, addr)
	if err != nil {
		return nil, err
	}
	client, ours := net.Pipe()
	p.mu.Lock()
	p.conns = append(p.conns, broker, ours)
	p.mu.Unlock()
	go p.copy(broker, ours, true)
	go p.copy(ours, broker, false)
	return client, nil
}

func (p *proxy) copy(to io.WriteCloser, from io.Reader, fromClient bool) {
	defer to.Close()
	buffer := make([]byte, 512)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		if fromClient && p.after > 0 {
			if p.after -= int64(n); p.after <= 0 {
				p.silent = true
			}
		}
		silent := p.silent
		p.mu.Unlock()
		if silent {
			continue // what was sent is gone
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		conn.Close()
	}
	p.conns, p.silent, p.after = nil, false, 0
}

func throughProxy(t *testing.T) (*amqp.Publisher, *proxy) {
	t.Helper()
	p := &proxy{}
	cfg := queues()
	cfg.AMQP.Connection.AmqpConfig = &amqp091.Config{Dial: p.dial}
	publisher := newPublisher(t, cfg)
	t.Cleanup(p.cut)
	return publisher, p
}

// The connection is cut in the middle of a wave, many times: nothing is lost, and the
// order of a unit holds.
func TestConnectionCutInTheMiddleOfAWave(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	queue := testamqp.NewQueue(t, nil)
	publisher, p := throughProxy(t)
	for key := range 20 {
		insert(t, db, queue, fmt.Sprint(key), ids(fmt.Sprintf("k%d", key), 20)...)
	}
	runForwarder(t, db, publisher)
	for range 15 {
		left := outboxRows(t, db, `true`)
		require.Eventually(t, func() bool { return left == 0 || outboxRows(t, db, `true`) < left }, patience, time.Millisecond)
		p.cut()
	}
	requireDrained(t, db)
	next := map[string]int{}
	for _, id := range takeIDs(t, queue, testamqp.Length(t, queue)) {
		var key, n int
		_, err := fmt.Sscanf(id, "k%d-%d", &key, &n)
		require.NoError(t, err)
		unit := fmt.Sprint(key)
		require.LessOrEqual(t, n, next[unit]+1, "nothing is overtaken")
		next[unit] = max(next[unit], n)
	}
	for key := range 20 {
		require.Equal(t, 20, next[fmt.Sprint(key)], "nothing is lost")
	}
}

// A broker that falls silent: the call ends with its context, and the next one goes
// through a new connection.
func TestSilentBrokerIsBoundedByTheContext(t *testing.T) {
	t.Parallel()
	for name, bytes := range map[string]int64{"in the handshake": 1, "while messages are sent": 20_000, "from the start of a wave": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := testamqp.NewQueue(t, nil)
			publisher, p := throughProxy(t)
			if bytes < 0 {
				require.NoError(t, publish(t, publisher, outgoing(queue, "a", "0", "x"))[0])
			}
			p.mu.Lock()
			p.after, p.silent = bytes, bytes < 0
			p.mu.Unlock()
			var msgs []forwarder.Outgoing
			for _, id := range ids("m", 100) {
				msgs = append(msgs, outgoing(queue, id, id, strings.Repeat("x", 1000)))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			results := publisher.PublishBatch(ctx, msgs)
			require.ErrorIs(t, results[99], forwarder.ErrUnavailable)
			p.cut()
			require.Eventually(t, func() bool { return publish(t, publisher, msgs[99])[0] == nil }, patience, 5*time.Millisecond)
		})
	}
}

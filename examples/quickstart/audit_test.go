package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/broker"
)

// world is a finished run on real servers, in which all is well: two orders, paid, one
// event of them in BROKER twice, and one order rolled back.
type world struct {
	t         *testing.T
	servers   *servers.Servers
	db        *sql.DB
	publisher servers.Publisher
	said      account
}

func newWorld(t *testing.T, kind servers.Kind) *world {
	t.Helper()
	w := newEmptyWorld(t, kind)
	w.said = account{deaths: 1, duplicatesDropped: 1}
	for _, id := range []string{"a", "b"} {
		w.said.committed = append(w.said.committed, id)
		w.exec(`INSERT INTO orders (id, status) VALUES ($1, 'paid')`, id)
		w.publish(ordersTopic, id)
		w.pay("payment of "+id, id)
	}
	w.publish(ordersTopic, "a")
	w.said.rolledBack = []string{"c"}
	return w
}

// newEmptyWorld has topics and tables, and nothing in them.
func newEmptyWorld(t *testing.T, kind servers.Kind) *world {
	t.Helper()
	s, err := servers.Open(t.Context(), kind, "quickstart_test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	require.NoError(t, s.CreateTopics(t.Context(), ordersTopic, paymentsTopic))
	db, err := sql.Open("postgres", s.PostgresDSN)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, createTables(t.Context(), db, s.Tables()))
	publisher, err := broker.Open(s.Broker, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	inTopics, err := s.InTopics(publisher)
	require.NoError(t, err)
	return &world{t: t, servers: s, db: db, publisher: inTopics}
}

func (w *world) exec(statement string, args ...any) {
	w.t.Helper()
	_, err := w.db.ExecContext(w.t.Context(), statement, args...)
	require.NoError(w.t, err)
}

func (w *world) pay(id, orderID string) {
	w.t.Helper()
	w.exec(`INSERT INTO payments (id, order_id, amount) VALUES ($1, $2, $3)`, id, orderID, price)
	w.exec(`UPDATE accounts SET balance = balance - $1`, price)
	w.publish(paymentsTopic, id)
}

func (w *world) publish(destination, id string) {
	w.t.Helper()
	require.NoError(w.t, errors.Join(w.publisher.PublishBatch(w.t.Context(), []forwarder.Outgoing{
		{Destination: destination, PartitionKey: id, Message: message.NewMessage(id, nil)},
	})...))
}

// publishWithOtherKey publishes what no forwarder would: a record without an event id,
// under a key.
func (w *world) publishWithOtherKey() {
	w.t.Helper()
	topic := w.servers.Topic(ordersTopic)
	if w.servers.Broker.Kind == broker.KindAMQP {
		connection, err := amqp091.Dial(string(w.servers.Broker.AMQP.URI))
		require.NoError(w.t, err)
		defer connection.Close()
		channel, err := connection.Channel()
		require.NoError(w.t, err)
		require.NoError(w.t, channel.Confirm(false))
		publishing := amqp091.Publishing{MessageId: "other"}
		confirmation, err := channel.PublishWithDeferredConfirm(topic, "", true, false, publishing)
		require.NoError(w.t, err)
		require.True(w.t, confirmation.Wait())
		return
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(w.servers.Broker.Kafka.Brokers...))
	require.NoError(w.t, err)
	defer client.Close()
	require.NoError(w.t, client.ProduceSync(w.t.Context(), &kgo.Record{Topic: topic, Key: []byte("other")}).FirstErr())
}

func TestAudit(t *testing.T) {
	t.Parallel()
	good := figures{orders: 2, rolledBack: 1, forwarded: 4, redelivered: 1, duplicatesDropped: 1, debits: 2}
	tests := map[string]struct {
		spoil  func(w *world)
		counts func(f *figures)
		faults []string
	}{
		"all is well": {
			spoil: func(*world) {},
		},
		"an order debited twice": {
			spoil:  func(w *world) { w.pay("again", "a") },
			counts: func(f *figures) { f.debits, f.doubleDebits, f.forwarded = 3, 1, 5 },
			faults: []string{
				"1 debits too many: orders were debited more than once",
				"2 orders, but 3 debits",
				"the customer's account lacks 30, the orders cost 20",
			},
		},
		"an outbox row deleted before it was forwarded": {
			spoil: func(w *world) {
				w.said.committed = append(w.said.committed, "d")
				w.exec(`INSERT INTO orders VALUES ('d', 'new')`)
				w.exec(`INSERT INTO outbox (id, destination, payload) VALUES ('d', 'orders', '{"event":"created"}')`)
				w.exec(`DELETE FROM outbox`)
			},
			counts: func(f *figures) { f.orders, f.lost = 3, 1 },
			faults: []string{
				"1 committed events are lost: neither in BROKER, nor in the outbox, nor in the dead letters",
				"3 orders, but 2 debits",
				"1 orders are not paid",
				"the customer's account lacks 20, the orders cost 30",
			},
		},
		"an event still in the outbox": {
			spoil: func(w *world) {
				w.said.committed = append(w.said.committed, "d")
				w.exec(`INSERT INTO orders VALUES ('d', 'new')`)
				w.exec(`INSERT INTO outbox (id, destination, payload) VALUES ('d', 'orders', '{"event":"created"}')`)
			},
			counts: func(f *figures) { f.orders = 3 },
			faults: []string{
				"3 orders, but 2 debits",
				"1 orders are not paid",
				"the customer's account lacks 20, the orders cost 30",
				"1 events are still in the outbox",
			},
		},
		"a payment's event is a dead letter": {
			spoil: func(w *world) {
				w.exec(`UPDATE payments SET id = 'dead' WHERE order_id = 'a'`)
				w.exec(`INSERT INTO outbox_dead_letters (seq, id, destination, payload, metadata, created_at, attempts, error)
					VALUES (1, 'dead', 'payments', '', '{}', now(), 1, 'refused')`)
			},
			counts: func(f *figures) { f.phantoms = 1 }, // the payment's former id
			faults: []string{"1 events in BROKER belong to no committed row", "1 events are dead letters"},
		},
		"a phantom": {
			spoil:  func(w *world) { w.publish(ordersTopic, "phantom") },
			counts: func(f *figures) { f.phantoms, f.forwarded = 1, 5 },
			faults: []string{"1 events in BROKER belong to no committed row"},
		},
		"an event in the wrong topic": {
			spoil:  func(w *world) { w.publish(paymentsTopic, "a") },
			counts: func(f *figures) { f.phantoms, f.forwarded = 1, 5 },
			faults: []string{"1 events in BROKER belong to no committed row"},
		},
		"the event of an order that was rolled back": {
			spoil:  func(w *world) { w.publish(ordersTopic, "c") },
			counts: func(f *figures) { f.rolledBack, f.phantoms, f.forwarded = 0, 1, 5 },
			faults: []string{"1 events in BROKER belong to no committed row", "1 orders that were rolled back left a trace"},
		},
		"an order whose COMMIT did nothing": {
			spoil:  func(w *world) { w.said.committed = append(w.said.committed, "d") },
			faults: []string{"1 orders whose COMMIT succeeded are not in the table"},
		},
		"an order that nobody committed": {
			spoil:  func(w *world) { w.said.committed = w.said.committed[:1] },
			faults: []string{"2 orders in the table, but only 1 were committed"},
		},
		"a debit without an order": {
			spoil: func(w *world) {
				w.exec(`UPDATE payments SET order_id = 'nobody' WHERE order_id = 'a'`)
			},
			faults: []string{"1 orders are not paid", "1 debits are for orders that do not exist"},
		},
		"money gone astray": {
			spoil:  func(w *world) { w.exec(`UPDATE accounts SET balance = balance - 1`) },
			faults: []string{"the customer's account lacks 21, the orders cost 20"},
		},
		"a record with another key": {
			spoil:  func(w *world) { w.publishWithOtherKey() },
			counts: func(f *figures) { f.phantoms, f.forwarded = 1, 5 },
			faults: []string{
				"1 events in BROKER belong to no committed row",
				"1 records in BROKER have another KEY than their event id",
			},
		},
		"a duplicate that was not dropped": {
			spoil:  func(w *world) { w.said.duplicatesDropped = 0 },
			counts: func(f *figures) { f.duplicatesDropped = 0 },
			faults: []string{"1 duplicates in BROKER, but only 0 were dropped"},
		},
		"no kill": {
			spoil:  func(w *world) { w.said.deaths = 0 },
			faults: []string{"the forwarder was never killed"},
		},
	}
	for _, kind := range []servers.Kind{servers.Kafka, servers.AMQP} {
		words := strings.NewReplacer("BROKER", "Kafka", "KEY", "key")
		if kind == servers.AMQP {
			words = strings.NewReplacer("BROKER", "RabbitMQ", "KEY", "message-id")
		}
		for name, test := range tests {
			t.Run(fmt.Sprint(kind, ": ", name), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, kind)
				test.spoil(w)
				want, faults := good, []string(nil)
				if test.counts != nil {
					test.counts(&want)
				}
				for _, fault := range test.faults {
					faults = append(faults, words.Replace(fault))
				}
				for range 2 { // reading changes nothing
					found, wrong, err := audit(t.Context(), w.db, w.servers.Addresses, w.said)
					require.NoError(t, err)
					require.Equal(t, want, found)
					require.Equal(t, faults, texts(wrong))
				}
			})
		}
	}
}

func texts(errs []error) []string {
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return texts
}

func TestKillsWithoutDuplicatesAreAFault(t *testing.T) {
	t.Parallel()
	found := texts(faults(figures{}, books{balance: openingBalance}, &deliveries{}, account{deaths: 2}))
	require.Equal(t, []string{"the forwarder was killed 2 times, but nothing was sent twice"}, found)
}

func TestTimeOutSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, kind := range []servers.Kind{servers.Kafka, servers.AMQP} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kind)
			w.exec(`INSERT INTO outbox (id, destination, payload) VALUES ('d', 'orders', '{"event":"created"}')`)
			d := &demo{servers: w.servers, db: w.db, screen: &screen{}}
			enough := errors.New("enough")
			// Where the machine is slow, the time is over before everything was counted.
			require.Eventually(t, func() bool {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, enough)
				defer cancel()
				err := d.awaitSettled(ctx, 3)
				return errors.Is(err, enough) &&
					err.Error() == "2 of 3 orders are paid, 1 events wait in the outbox, 0 of 5 records are handled: enough"
			}, time.Minute, time.Millisecond)
		})
	}
}

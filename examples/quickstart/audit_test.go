package main

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

// world is a finished run on real servers, in which all is well: two orders, paid, one
// event of them in Kafka twice, and one order rolled back.
type world struct {
	t       *testing.T
	servers *servers.Servers
	db      *sql.DB
	kafka   servers.Publisher
	said    account
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := newEmptyWorld(t)
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
func newEmptyWorld(t *testing.T) *world {
	t.Helper()
	s, err := servers.Open(t.Context(), servers.Kafka, "quickstart_test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	require.NoError(t, s.CreateTopics(t.Context(), ordersTopic, paymentsTopic))
	db, err := sql.Open("postgres", s.PostgresDSN)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, createTables(t.Context(), db, s.Tables()))
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: s.Brokers}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	return &world{t: t, servers: s, db: db, kafka: s.InTopics(publisher)}
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
	require.NoError(w.t, errors.Join(w.kafka.PublishBatch(w.t.Context(), []forwarder.Outgoing{
		{Destination: destination, PartitionKey: id, Message: message.NewMessage(id, nil)},
	})...))
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
				"1 committed events are lost: neither in Kafka, nor in the outbox, nor in the dead letters",
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
			faults: []string{"1 events in Kafka belong to no committed row", "1 events are dead letters"},
		},
		"a phantom": {
			spoil:  func(w *world) { w.publish(ordersTopic, "phantom") },
			counts: func(f *figures) { f.phantoms, f.forwarded = 1, 5 },
			faults: []string{"1 events in Kafka belong to no committed row"},
		},
		"an event in the wrong topic": {
			spoil:  func(w *world) { w.publish(paymentsTopic, "a") },
			counts: func(f *figures) { f.phantoms, f.forwarded = 1, 5 },
			faults: []string{"1 events in Kafka belong to no committed row"},
		},
		"the event of an order that was rolled back": {
			spoil:  func(w *world) { w.publish(ordersTopic, "c") },
			counts: func(f *figures) { f.rolledBack, f.phantoms, f.forwarded = 0, 1, 5 },
			faults: []string{"1 events in Kafka belong to no committed row", "1 orders that were rolled back left a trace"},
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
			spoil: func(w *world) {
				client, err := kgo.NewClient(kgo.SeedBrokers(w.servers.Brokers...))
				require.NoError(w.t, err)
				defer client.Close()
				record := &kgo.Record{Topic: w.servers.Topic(ordersTopic), Key: []byte("other")}
				require.NoError(w.t, client.ProduceSync(w.t.Context(), record).FirstErr())
			},
			counts: func(f *figures) { f.phantoms, f.forwarded = 1, 5 },
			faults: []string{
				"1 events in Kafka belong to no committed row",
				"1 records in Kafka have another key than their event id",
			},
		},
		"a duplicate that was not dropped": {
			spoil:  func(w *world) { w.said.duplicatesDropped = 0 },
			counts: func(f *figures) { f.duplicatesDropped = 0 },
			faults: []string{"1 duplicates in Kafka, but only 0 were dropped"},
		},
		"no kill": {
			spoil:  func(w *world) { w.said.deaths = 0 },
			faults: []string{"the forwarder was never killed"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			test.spoil(w)
			found, faults, err := audit(t.Context(), w.db, w.servers.Addresses, w.said)
			require.NoError(t, err)
			want := good
			if test.counts != nil {
				test.counts(&want)
			}
			require.Equal(t, want, found)
			require.Equal(t, test.faults, texts(faults))
		})
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
	w := newWorld(t)
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
}

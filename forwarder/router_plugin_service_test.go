package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/ledger"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/internal/testkafka"
	"github.com/watermill-outbox/outbox/middleware"
)

// service is an existing router with everything on it: orders leave through an outbox of
// their own, a handler with an inbox debits each once, and its payments leave through
// the outbox beside the inbox.
type service struct {
	broker interface {
		NewDestination(t *testing.T) string
		Subscriber(group string) (message.Subscriber, error)
		Deliveries(ctx context.Context, destination string) ([]ledger.Delivery, error)
	}
	publisher interface {
		message.Publisher
		forwarder.BatchPublisher
	}
	orders, payments       *testdb.DB
	ordersTopic, paidTopic string
}

const (
	serviceGroup  = "payments"
	serviceOrders = 200
)

func newKafkaService(t *testing.T) *service {
	t.Helper()
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: testkafka.Brokers()}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	s := &service{broker: ledger.NewKafka(t), publisher: publisher}
	s.prepare(t)
	return s
}

func newAMQPService(t *testing.T) *service {
	t.Helper()
	publisher, err := amqp.NewPublisher(amqp.NewPubSubConfig(testamqp.URI()), watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	s := &service{broker: ledger.NewAMQP(t), publisher: publisher}
	s.prepare(t)
	testamqp.DeleteQueueAfter(t, s.ordersTopic+"_"+serviceGroup)
	return s
}

func (s *service) prepare(t *testing.T) {
	t.Helper()
	s.orders, s.payments = testdb.New(t), testdb.New(t)
	s.ordersTopic, s.paidTopic = s.broker.NewDestination(t), s.broker.NewDestination(t)
	_, err := s.payments.ExecContext(t.Context(), `CREATE TABLE `+s.debits()+` (order_id text NOT NULL)`)
	require.NoError(t, err)
}

func (s *service) debits() string { return `"` + s.payments.Schema.Schema + `".debits` }

// slow takes its time for each batch.
type slow struct {
	message.Publisher

	batches forwarder.BatchPublisher
}

func (s slow) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	delay := time.NewTimer(200 * time.Millisecond)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-ctx.Done():
	}
	return s.batches.PublishBatch(ctx, msgs)
}

// run runs a router as a process of the service does, with Watermill's default for
// CloseTimeout.
func (s *service) run(t *testing.T) *runningRouter {
	t.Helper()
	router := newRouter(t, 0)
	broker := slow{Publisher: s.publisher, batches: s.publisher}
	cfg := fast(forwarder.Config{Workers: 1, BatchSize: 8})
	addForwarder(t, router, s.orders, broker, cfg)
	addForwarder(t, router, s.payments, broker, cfg)

	store, err := inbox.NewStore(inbox.Config{Schema: s.payments.Schema})
	require.NoError(t, err)
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: s.payments.Schema}, nil)
	require.NoError(t, err)
	once, err := middleware.NewInbox(middleware.InboxConfig{DB: s.payments.DB, Store: store, Outbox: publisher}, nil)
	require.NoError(t, err)
	subscriber, err := s.broker.Subscriber(serviceGroup)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	router.AddHandler("debit", s.ordersTopic, subscriber, s.paidTopic, publisher, once.Middleware(s.debit))
	return runRouter(t, router)
}

func (s *service) debit(msg *message.Message) ([]*message.Message, error) {
	tx, ok := outbox.TxFromContext[*sql.Tx](msg.Context())
	if !ok {
		return nil, outbox.ErrNoTx
	}
	if _, err := tx.ExecContext(msg.Context(), `INSERT INTO `+s.debits()+` VALUES ($1)`, msg.UUID); err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage("payment of "+msg.UUID, msg.Payload)}, nil
}

func (s *service) order(t *testing.T) (orders []string) {
	t.Helper()
	_, err := s.orders.ExecContext(t.Context(), `INSERT INTO `+s.orders.Schema.Outbox()+` (id, destination, payload)
		SELECT 'order ' || n, $2, 'x' FROM generate_series(1, $1) AS n`, serviceOrders, s.ordersTopic)
	require.NoError(t, err)
	for n := range serviceOrders {
		orders = append(orders, fmt.Sprintf("order %d", n+1))
	}
	return orders
}

func (s *service) debited(t *testing.T) []string {
	t.Helper()
	rows, err := s.payments.QueryContext(t.Context(), `SELECT order_id FROM `+s.debits())
	require.NoError(t, err)
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(t, rows.Err())
	return ids
}

func (s *service) delivered(t *testing.T, topic string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	deliveries, err := s.broker.Deliveries(ctx, topic)
	require.NoError(t, err)
	ids := make([]string, len(deliveries))
	for i, d := range deliveries {
		ids[i] = d.ID
	}
	return ids
}

// requireNothingLost checks that each message is in the outbox or was delivered, never
// both and never twice: nobody was killed.
func (s *service) requireNothingLost(t *testing.T, orders []string) {
	t.Helper()
	require.ElementsMatch(t, orders, append(idsInOutbox(t, s.orders, `true`), s.delivered(t, s.ordersTopic)...))
	var payments []string
	for _, order := range s.debited(t) {
		payments = append(payments, "payment of "+order)
	}
	require.ElementsMatch(t, payments, append(idsInOutbox(t, s.payments, `true`), s.delivered(t, s.paidTopic)...))
}

// A service with a router of handlers and two forwarders ends under load, on brokers
// that are slow. Nothing is lost and nothing is sent again; the next process finishes.
func TestRouterPlugin_ServiceEndsUnderLoad(t *testing.T) {
	t.Parallel()
	for name, newService := range map[string]func(t *testing.T) *service{"kafka": newKafkaService, "amqp": newAMQPService} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothWays(t, func(t *testing.T, end func(*runningRouter) <-chan error) {
				s := newService(t)
				first := s.run(t)
				orders := s.order(t)
				eventually(t, func() bool { return len(s.debited(t)) >= 20 })
				closed := end(first)
				first.await(t)
				requireClosed(t, closed)
				require.NoError(t, first.err)
				t.Logf("%d of %d orders are debited, %d wait in the first outbox, %d payments in the second", len(s.debited(t)),
					serviceOrders, len(idsInOutbox(t, s.orders, `true`)), len(idsInOutbox(t, s.payments, `true`)))
				s.requireNothingLost(t, orders)

				second := s.run(t)
				eventually(t, func() bool { return len(s.debited(t)) >= serviceOrders })
				requireDrained(t, s.payments)
				requireClosed(t, end(second))
				second.await(t)
				require.Empty(t, idsInOutbox(t, s.orders, `true`))
				s.requireNothingLost(t, orders)
				require.ElementsMatch(t, orders, s.debited(t))
			})
		})
	}
}

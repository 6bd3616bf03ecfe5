package amqp_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
)

// debits is a service whose handler is decorated with the inbox: each event has one
// effect, a row, and is passed on with all its metadata.
type debits struct {
	db       *testdb.DB
	attempts atomic.Int64
	// failures is how many attempts fail after the effect, before one succeeds.
	failures int64
	handled  chan message.Metadata
}

var errDebit = errors.New("test: the handler failed")

func newDebits(t *testing.T, failures int64) *debits {
	t.Helper()
	d := &debits{db: testdb.New(t), failures: failures, handled: make(chan message.Metadata, 100)}
	_, err := d.db.ExecContext(t.Context(), `CREATE TABLE `+d.db.Schema.Schema+`.debits (event_id text NOT NULL)`)
	require.NoError(t, err)
	return d
}

func (d *debits) handle(msg *message.Message) ([]*message.Message, error) {
	tx, ok := outbox.TxFromContext[*sql.Tx](msg.Context())
	if !ok {
		return nil, outbox.ErrNoTx
	}
	if _, err := tx.ExecContext(msg.Context(), `INSERT INTO `+d.db.Schema.Schema+`.debits (event_id) VALUES ($1)`, msg.UUID); err != nil {
		return nil, err
	}
	if d.attempts.Add(1) <= d.failures {
		return nil, errDebit
	}
	d.handled <- msg.Metadata
	return []*message.Message{msg.Copy()}, nil
}

// run consumes the queue with watermill-amqp's own subscriber, and publishes to next.
func (d *debits) run(t *testing.T, cfg wmamqp.Config, queue, next string) {
	t.Helper()
	store, err := inbox.NewStore(inbox.Config{Schema: d.db.Schema})
	require.NoError(t, err)
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: d.db.Schema}, nil)
	require.NoError(t, err)
	once, err := middleware.NewInbox(middleware.InboxConfig{DB: d.db.DB, Store: store, Outbox: publisher}, nil)
	require.NoError(t, err)
	subscriber, err := testamqp.NewSubscriber(cfg, watermill.NopLogger{})
	require.NoError(t, err)
	router := message.NewDefaultRouter(nil)
	router.AddHandler("debits", queue, subscriber, next, publisher, once.Middleware(d.handle))
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, subscriber.Close())
	})
	<-router.Running()
}

func (d *debits) nextHandled(t *testing.T) message.Metadata {
	t.Helper()
	select {
	case metadata := <-d.handled:
		return metadata
	case <-time.After(patience):
		require.FailNow(t, "no event was handled")
		return nil
	}
}

func (d *debits) requireOneEffect(t *testing.T, eventID string) {
	t.Helper()
	var effects int
	require.NoError(t, d.db.QueryRowContext(t.Context(),
		`SELECT count(*) FROM `+d.db.Schema.Schema+`.debits WHERE event_id = $1`, eventID).Scan(&effects))
	require.Equal(t, 1, effects)
}

func newQueueName(t *testing.T) string {
	t.Helper()
	name := testamqp.Name(t)
	testamqp.DeleteQueueAfter(t, name)
	return name
}

// An event is dead-lettered on its way, which leaves a header that is no text. It reaches
// the handler, with the broker's history of it, has one effect, and can be passed on.
func TestDeadLetteredEventReachesTheInbox(t *testing.T) {
	t.Parallel()
	forEachQueueType(t, func(t *testing.T, arguments amqp091.Table) {
		d := newDebits(t, 0)
		queue, parked, next := newQueueName(t), newQueueName(t), newQueueName(t)
		cfg := amqp.NewQueueConfig(testamqp.URI())
		cfg.AMQP.Queue.Arguments = amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": parked}
		maps.Copy(cfg.AMQP.Queue.Arguments, arguments)
		forward := amqp.NewQueueConfig(testamqp.URI())
		testamqp.DeclareQueue(t, parked, arguments)
		testamqp.DeclareQueue(t, queue, cfg.AMQP.Queue.Arguments)

		runForwarder(t, d.db, newPublisher(t, queues()))
		for range 2 { // the same event twice, as after a crash of the forwarder
			insert(t, d.db, queue, "", "event-1")
			require.NoError(t, waitFor(t, queue).Nack(false, false))
		}

		forward.AMQP.Queue.Arguments = arguments
		testamqp.DeclareQueue(t, next, nil)
		d.run(t, forward.AMQP, parked, next)
		metadata := d.nextHandled(t)
		var deaths []struct {
			Count         int
			Queue, Reason string
		}
		require.NoError(t, json.Unmarshal([]byte(metadata[amqp.BrokerHeaderPrefix+"x-death"]), &deaths))
		require.Len(t, deaths, 1)
		require.Equal(t, 1, deaths[0].Count)
		require.Equal(t, queue, deaths[0].Queue)
		require.Equal(t, "rejected", deaths[0].Reason)
		require.Equal(t, queue, metadata[amqp.BrokerHeaderPrefix+"x-first-death-queue"])

		require.Equal(t, []string{"event-1"}, takeIDs(t, next, 1), "it is passed on")
		require.Eventually(t, func() bool { return testamqp.Length(t, parked) == 0 }, patience, 5*time.Millisecond)
		d.requireOneEffect(t, "event-1")
		require.EqualValues(t, 1, d.attempts.Load())
	})
}

// waitFor takes the next message of a queue without an ack.
func waitFor(t *testing.T, queue string) amqp091.Delivery {
	t.Helper()
	channel := testamqp.Channel(t)
	var delivery amqp091.Delivery
	require.Eventually(t, func() bool {
		var ok bool
		var err error
		delivery, ok, err = channel.Get(queue, false)
		return err == nil && ok
	}, patience, 5*time.Millisecond)
	return delivery
}

// A quorum queue counts deliveries in a header that is a number, on each of them.
func TestRedeliveryOfAQuorumQueueReachesTheInbox(t *testing.T) {
	t.Parallel()
	d := newDebits(t, 2)
	queue, next := newQueueName(t), newQueueName(t)
	cfg := amqp.NewQueueConfig(testamqp.URI())
	cfg.AMQP.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	for _, name := range []string{queue, next} {
		testamqp.DeclareQueue(t, name, cfg.AMQP.Queue.Arguments)
	}
	insert(t, d.db, queue, "", "event-1")
	runForwarder(t, d.db, newPublisher(t, cfg))
	d.run(t, cfg.AMQP, queue, next)
	metadata := d.nextHandled(t)
	require.Equal(t, "2", metadata[amqp.BrokerHeaderPrefix+"x-delivery-count"])
	requireDrained(t, d.db)
	require.Equal(t, []string{"event-1"}, takeIDs(t, next, 1))
	d.requireOneEffect(t, "event-1")
	require.EqualValues(t, 3, d.attempts.Load())
}

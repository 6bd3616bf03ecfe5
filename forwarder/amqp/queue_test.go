package amqp_test

import (
	"maps"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

func quorum(more amqp091.Table) amqp091.Table {
	arguments := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	maps.Copy(arguments, more)
	return arguments
}

func queuesWith(arguments amqp091.Table) amqp.Config {
	cfg := amqp.NewQueueConfig(testamqp.URI())
	cfg.AMQP.Queue.Arguments = arguments
	return cfg
}

// The publisher declares quorum queues; rows wait for their confirmation and arrive in
// order; a queue that was deleted is declared again.
func TestQuorumQueue(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	queue := newQueueName(t)
	arguments := quorum(amqp091.Table{"x-delivery-limit": 5, "x-dead-letter-exchange": "amq.fanout"})
	runForwarder(t, db, newPublisher(t, queuesWith(arguments)))
	insert(t, db, queue, "a", ids("k1", 100)...)
	requireDrained(t, db)
	testamqp.DeclareQueue(t, queue, arguments) // else it is of another type
	requireInOrder(t, takeIDs(t, queue, 100), map[string]int{"1": 100})

	testamqp.DeleteQueue(t, queue)
	insert(t, db, queue, "a", ids("k2", 100)...)
	requireDrained(t, db)
	testamqp.DeclareQueue(t, queue, arguments)
	requireInOrder(t, takeIDs(t, queue, 100), map[string]int{"2": 100})
}

// A full quorum queue rejects what it has confirmed nothing of.
func TestFullQuorumQueueHoldsBackAndKeepsOrder(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	queue, other := newQueueName(t), newQueueName(t)
	cfg := queuesWith(quorum(amqp091.Table{amqp091.QueueMaxLenArg: 3, amqp091.QueueOverflowArg: amqp091.QueueOverflowRejectPublish}))
	insert(t, db, queue, "a", ids("k1", 30)...)
	insert(t, db, other, "a", ids("k2", 3)...)
	runForwarder(t, db, newPublisher(t, cfg))
	require.Eventually(t, func() bool {
		return outboxRows(t, db, `true`) < 30 && outboxRows(t, db, `partition_key = 'a' AND id LIKE 'k2%'`) == 0
	}, patience, 5*time.Millisecond)
	require.Zero(t, outboxRows(t, db, `attempts > 0`))
	requireInOrder(t, takeIDs(t, queue, 30), map[string]int{"1": 30})
	requireDrained(t, db)
}

// A queue that exists with another type closes the channel when it is declared: its
// messages wait, without an attempt, and an operator reads why. The others go on.
func TestQueueOfAnotherType(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		exists, asked amqp091.Table
		text          []string
	}{
		"classic where quorum is asked": {
			nil, quorum(nil),
			[]string{"(of type quorum)", "inequivalent arg 'x-queue-type'", "where it says none, that is the default: for x-queue-type, classic"},
		},
		"quorum where classic is asked": {
			quorum(nil), nil,
			[]string{"(of the default type, classic)", "current is the value 'quorum'"},
		},
		"quorum with another limit": {
			quorum(nil), quorum(amqp091.Table{"x-delivery-limit": 3, "x-dead-letter-exchange": ""}),
			[]string{"(of type quorum)", "inequivalent arg"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			queue := testamqp.NewQueue(t, test.exists)
			publisher := newPublisher(t, queuesWith(test.asked))
			err := publish(t, publisher, outgoing(queue, "a", "1", "x"))[0]
			require.ErrorIs(t, err, forwarder.ErrDestinationUnavailable)
			require.NotErrorIs(t, err, forwarder.ErrRefused)
			require.ErrorContains(t, err, `declare queue "`+queue+`"`)
			for _, text := range test.text {
				require.ErrorContains(t, err, text)
			}

			other := newQueueName(t)
			insert(t, db, queue, "a", ids("k1", 5)...)
			insert(t, db, other, "a", "other")
			runForwarder(t, db, publisher)
			testamqp.DeclareQueue(t, other, test.asked)
			require.Equal(t, []string{"other"}, takeIDs(t, other, 1))
			require.Equal(t, 5, outboxRows(t, db, `attempts = 0 AND id <> 'other'`))
			testamqp.DeleteQueue(t, queue)
			requireDrained(t, db)
			requireInOrder(t, takeIDs(t, queue, 5), map[string]int{"1": 5})
		})
	}
}

// Arguments of a queue with which RabbitMQ throws messages away are refused.
func TestQueueArgumentsThatLoseMessages(t *testing.T) {
	t.Parallel()
	for text, arguments := range map[string]amqp091.Table{
		"x-expires: the queue would be deleted":              {"x-expires": 1000},
		"x-message-ttl without x-dead-letter-exchange":       {"x-message-ttl": 1000},
		"x-delivery-limit without x-dead-letter-exchange":    quorum(amqp091.Table{"x-delivery-limit": 3}),
		"x-max-length without x-overflow reject-publish":     {"x-max-length": 3},
		"x-max-length-bytes without x-overflow":              {"x-max-length-bytes": 3},
		"x-max-length without x-overflow reject-publish: a ": {"x-max-length": 3, "x-overflow": "drop-head"},
	} {
		cfg := queuesWith(arguments)
		err := cfg.Validate()
		require.ErrorIs(t, err, amqp.ErrInvalidConfig)
		require.ErrorContains(t, err, "AMQP.Queue.Arguments holds "+text)
		cfg.DeclareQueues = false
		require.NoError(t, cfg.Validate(), "what subscribers do with their queues is theirs")
	}
	for _, arguments := range []amqp091.Table{
		quorum(amqp091.Table{"x-delivery-limit": 3, "x-dead-letter-exchange": "dead"}),
		{"x-max-length": 3, "x-overflow": "reject-publish"},
		{"x-message-ttl": 3, "x-dead-letter-exchange": ""},
	} {
		require.NoError(t, queuesWith(arguments).Validate())
	}
}

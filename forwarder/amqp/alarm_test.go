package amqp_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// An alarm of the broker blocks the connection: each batch is given back in bounded
// time, whatever its size, without an attempt; when the alarm is over everything
// arrives, in order, and no more than one wave for each worker arrives twice.
func TestMemoryAlarm(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	broker := testamqp.StartBroker(t)
	cfg := amqp.NewQueueConfig(broker.URI())
	publisher := newPublisher(t, cfg)
	require.NoError(t, publish(t, publisher, outgoing("orders", "first", "first", "x"))[0])

	broker.Control(t, "set_vm_memory_high_watermark", "0")
	// More than the sockets hold: the client library cannot even write it.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var large []forwarder.Outgoing
	for _, id := range ids("large", 40) {
		large = append(large, outgoing("orders", id, id, strings.Repeat("x", 1<<20)))
	}
	results := publisher.PublishBatch(ctx, large)
	require.ErrorIs(t, results[39], forwarder.ErrUnavailable)
	require.NoError(t, ctx.Err(), "given back at once, not when the time is over")
	require.ErrorIs(t, publish(t, publisher, large...)[0], forwarder.ErrUnavailable)

	const keys, perKey = 10, 30
	for key := range keys {
		insert(t, db, "orders", fmt.Sprint(key), ids(fmt.Sprintf("k%d", key), perKey)...)
	}
	blocked := make(chan struct{})
	second, err := amqp.NewPublisher(cfg, &errorLogger{onError: sync.OnceFunc(func() { close(blocked) })})
	require.NoError(t, err)
	stop := runForwarder(t, db, second)
	select {
	case <-blocked:
	case <-time.After(patience):
		require.Fail(t, "the forwarder met no alarm")
	}
	require.Equal(t, keys*perKey, outboxRows(t, db, `attempts = 0`), "no attempt is spent")

	broker.Control(t, "set_vm_memory_high_watermark", "absolute", "1GiB")
	requireDrained(t, db)
	require.NoError(t, stop())
	require.NoError(t, second.Close())

	next, total := map[string]int{}, 0
	for _, id := range drain(t, broker.URI(), "orders") {
		var key, n int
		if _, err := fmt.Sscanf(id, "k%d-%d", &key, &n); err != nil {
			continue // large ones
		}
		total++
		unit := fmt.Sprint(key)
		require.LessOrEqual(t, n, next[unit]+1, "nothing is overtaken")
		next[unit] = max(next[unit], n)
	}
	for key := range keys {
		require.Equal(t, perKey, next[fmt.Sprint(key)])
	}
	require.LessOrEqual(t, total-keys*perKey, 2*keys, "a wave for each of two workers")
}

func drain(t *testing.T, uri, queue string) []string {
	t.Helper()
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)
	var got []string
	for {
		delivery, ok, err := channel.Get(queue, true)
		require.NoError(t, err)
		if !ok {
			return got
		}
		got = append(got, delivery.MessageId)
	}
}

// errorLogger calls a function for each error.
type errorLogger struct {
	watermill.NopLogger

	onError func()
}

func (l *errorLogger) Error(string, error, watermill.LogFields)         { l.onError() }
func (l *errorLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

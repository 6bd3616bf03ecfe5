package pgbouncertest_test

import (
	"context"
	"sync"
	"testing"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

const (
	jobs        = 40
	subscribers = poolSize - 1 // each keeps a server connection while its message is handled
)

// sendAndReceive lets watermill-sql's publisher, in transactions, and several of its
// subscribers use the outbox as a queue: each message arrives once, byte for byte and in
// the order of its key.
func sendAndReceive(t *testing.T, db database, m mode) {
	t.Helper()
	send(t, db, m)
	var (
		mu       sync.Mutex
		received = map[string][]*message.Message{}
		working  sync.WaitGroup
	)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, process := range db.openMany(t, m, subscribers) {
		subscriber, err := wmsql.NewSubscriber(process, wmsql.SubscriberConfig{
			SchemaAdapter: db.schema, OffsetsAdapter: db.schema, InitializeSchema: true,
		}, nil)
		require.NoError(t, err)
		for range 20 { // outside of a transaction
			require.NoError(t, subscriber.SubscribeInitialize(destination))
		}
		messages, err := subscriber.Subscribe(ctx, destination)
		require.NoError(t, err)
		working.Go(func() {
			for msg := range messages {
				mu.Lock()
				key := msg.Metadata.Get("key")
				received[key] = append(received[key], msg)
				mu.Unlock()
				msg.Ack()
			}
		})
	}
	eventually(t, func() bool { return db.count(t, db.schema.Outbox(), `true`) == 0 }, "messages are left")
	cancel()
	working.Wait()
	for key := range keys {
		require.Len(t, received[keyName(key)], jobs/keys)
		for n, got := range received[keyName(key)] {
			want := newJob(keyName(key), n)
			require.True(t, want.Equals(got), "message %d of %s: %v", n, keyName(key), got)
		}
	}
}

func send(t *testing.T, db database, m mode) {
	t.Helper()
	process := db.open(t, m)
	for n := range jobs / keys {
		tx, err := process.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		publisher, err := wmsql.NewPublisher(tx, wmsql.PublisherConfig{SchemaAdapter: db.schema}, nil)
		require.NoError(t, err)
		for key := range keys {
			require.NoError(t, publisher.Publish(destination, newJob(keyName(key), n)))
		}
		require.NoError(t, tx.Commit())
	}
}

func newJob(key string, n int) *message.Message {
	msg := newMessage(key, n)
	msg.Metadata.Set("key", key)
	return msg
}

package pgbouncertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder"
)

const (
	producers    = 2 * poolSize
	transactions = 12 // of each producer
	keys         = 5
	destination  = "orders"
)

// publishAndForward lets producers and two forwarders work: each committed message is
// published once, byte for byte and in the order of its key.
func publishAndForward(t *testing.T, db database, m mode, cfg forwarder.Config) {
	t.Helper()
	var published recorder
	for range 2 {
		db.startForwarder(t, db.open(t, m), published.publisher(), cfg)
	}
	committed := db.produce(t, m)
	eventually(t, func() bool {
		return db.count(t, db.schema.Outbox(), `published_at IS NULL`) == 0
	}, "the outbox is not drained")

	require.Equal(t, committed, published.counts())
	require.Empty(t, published.altered())
	require.NotZero(t, published.refusals())
	if cfg.Ordering == forwarder.PerKey {
		for key := range keys {
			published.requireOrder(t, keyName(key))
		}
	}
	if cfg.Settlement == forwarder.MarkPublished {
		require.Equal(t, len(committed), db.count(t, db.schema.Outbox(), `published_at IS NOT NULL`))
	}
}

// startForwarder runs a replica until the test ends.
func (d database) startForwarder(t *testing.T, pool *sql.DB, pub message.Publisher, cfg forwarder.Config) {
	t.Helper()
	cfg.Schema = d.schema
	cfg.BatchSize = 10
	cfg.PollInterval = 10 * time.Millisecond
	cfg.RetryInitial = 5 * time.Millisecond
	f, err := forwarder.New(pool, pub, cfg, errorLogger{t})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// produce runs the producers to their end and returns how often each committed message
// must be published: once.
func (d database) produce(t *testing.T, m mode) map[string]int {
	t.Helper()
	_, err := d.direct.ExecContext(t.Context(), `DROP TABLE IF EXISTS events.counters;
		CREATE TABLE events.counters (key text PRIMARY KEY, n bigint NOT NULL DEFAULT 0)`)
	require.NoError(t, err)
	for key := range keys {
		_, err := d.direct.ExecContext(t.Context(), `INSERT INTO events.counters (key) VALUES ($1)`, keyName(key))
		require.NoError(t, err)
	}
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: d.schema}, nil)
	require.NoError(t, err)

	var (
		working   sync.WaitGroup
		mu        sync.Mutex
		committed = map[string]int{}
	)
	for p, process := range d.openMany(t, m, producers) {
		working.Go(func() {
			for i := range transactions {
				ids, err := write(t.Context(), process, publisher, keyName((p+i)%keys), i)
				if err != nil {
					t.Errorf("producer %d, transaction %d: %v", p, i, err)
					return
				}
				mu.Lock()
				for _, id := range ids {
					committed[id] = 1
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	return committed
}

// write runs a producer's transaction i: one message, several, a binary payload among
// them, or a rollback. It returns the ids of those that are committed.
func write(ctx context.Context, db *sql.DB, publisher *outbox.Publisher, key string, i int) (ids []string, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if rollbackErr := tx.Rollback(); rollbackErr != nil && !errors.Is(rollbackErr, sql.ErrTxDone) {
			err = errors.Join(err, rollbackErr)
		}
	}()
	count := []int{1, 3, 1, 20}[i%4]
	var last int
	err = tx.QueryRowContext(ctx, `UPDATE events.counters SET n = n + $2 WHERE key = $1 RETURNING n`, key, count).Scan(&last)
	if err != nil {
		return nil, err
	}
	var msgs []*message.Message
	for n := last - count + 1; n <= last; n++ {
		msgs = append(msgs, newMessage(key, n))
		ids = append(ids, id(key, n))
	}
	if err := publisher.PublishTx(ctx, tx, destination, msgs...); err != nil {
		return nil, err
	}
	if i%7 == 6 {
		return nil, nil
	}
	return ids, tx.Commit()
}

func keyName(key int) string { return fmt.Sprintf("key-%d", key) }

func id(key string, n int) string { return fmt.Sprintf("%s/%d", key, n) }

// newMessage makes the message n of a key, which is the same whoever makes it.
func newMessage(key string, n int) *message.Message {
	payload := fmt.Appendf(nil, `{"n": %d, "text": "it's \\ a \"ключ\" {,}"}`, n)
	if n%3 == 0 {
		payload = append(payload, 0, 0xff, '\\', '\'', byte(n))
	}
	msg := message.NewMessage(id(key, n), payload)
	msg.Metadata.Set(outbox.PartitionKeyMetadata, key)
	msg.Metadata.Set(`a "quoted" \ näme`, fmt.Sprintf(`{%d, 'значение'}`, n))
	return msg
}

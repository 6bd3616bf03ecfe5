package pgbouncertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/middleware"
)

const (
	events     = 40
	deliveries = 3
)

// handleAndForget delivers each event by several processes at once: it has one effect and
// one message in the outbox. Then its key grows old.
func handleAndForget(t *testing.T, db database, m mode) {
	t.Helper()
	_, err := db.direct.ExecContext(t.Context(), `CREATE TABLE events.effects (event_id text NOT NULL)`)
	require.NoError(t, err)

	var (
		consuming  sync.WaitGroup
		duplicates atomic.Int64
	)
	var consumers []message.NoPublishHandlerFunc
	for _, process := range db.openMany(t, m, deliveries) {
		consumers = append(consumers, db.consumer(t, process, &duplicates))
	}
	for _, handle := range consumers {
		for _, n := range rand.Perm(events) {
			consuming.Go(func() {
				msg := message.NewMessage(fmt.Sprintf("event-%d", n), fmt.Appendf(nil, `{"n": %d}`, n))
				if err := handle(msg); err != nil {
					t.Errorf("event %d: %v", n, err)
				}
			})
		}
	}
	consuming.Wait()
	require.EqualValues(t, events*(deliveries-1), duplicates.Load())
	require.Equal(t, events, db.count(t, `events.effects`, `true`))
	require.Equal(t, events, db.count(t, db.schema.Outbox(), `payload = 'paid'`))
	require.Equal(t, events, db.count(t, db.schema.Inbox(), `true`))

	requireRetention(t, db, db.openMany(t, m, 2*poolSize)...)
}

// consumer is a process that handles events with the inbox around its handler.
func (d database) consumer(t *testing.T, pool *sql.DB, duplicates *atomic.Int64) message.NoPublishHandlerFunc {
	t.Helper()
	store, err := inbox.NewStore(inbox.Config{Schema: d.schema})
	require.NoError(t, err)
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: d.schema}, nil)
	require.NoError(t, err)
	i, err := middleware.NewInbox(middleware.InboxConfig{
		DB: pool, Store: store, Consumer: "payments", Outbox: publisher,
		WaitTimeout: patience,
		OnDuplicate: func(context.Context, inbox.Key) { duplicates.Add(1) },
	}, nil)
	require.NoError(t, err)
	return i.NoPublish(func(msg *message.Message) error {
		tx, ok := outbox.TxFromContext[*sql.Tx](msg.Context())
		if !ok {
			return errors.New("no transaction")
		}
		var bound string
		if err := tx.QueryRowContext(msg.Context(), `SHOW lock_timeout`).Scan(&bound); err != nil || bound != "0" {
			return fmt.Errorf("lock_timeout is %q: %w", bound, err)
		}
		if _, err := tx.ExecContext(msg.Context(), `INSERT INTO events.effects (event_id) VALUES ($1)`, msg.UUID); err != nil {
			return err
		}
		produced := message.NewMessage("paid-"+msg.UUID, []byte("paid"))
		produced.SetContext(msg.Context())
		return publisher.Publish("payments", produced)
	})
}

// requireRetention deletes all keys, by several processes at once.
func requireRetention(t *testing.T, db database, processes ...*sql.DB) {
	t.Helper()
	store, err := inbox.NewStore(inbox.Config{Schema: db.schema})
	require.NoError(t, err)
	var (
		cleaning sync.WaitGroup
		deleted  atomic.Int64
	)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, process := range processes {
		cleaning.Go(func() {
			for range 5 {
				n, err := store.DeleteOlderThan(ctx, process, time.Microsecond)
				if err != nil {
					t.Errorf("retention: %v", err)
				}
				deleted.Add(n)
			}
		})
	}
	cleaning.Wait()
	require.EqualValues(t, events, deleted.Load())
	require.Zero(t, db.count(t, db.schema.Inbox(), `true`))
}

// recordByMany records keys in transactions of the caller's, without the middleware.
func recordByMany(t *testing.T, db database, m mode) {
	t.Helper()
	store, err := inbox.NewStore(inbox.Config{Schema: db.schema})
	require.NoError(t, err)
	var (
		recording sync.WaitGroup
		fresh     atomic.Int64
		reused    atomic.Int64
	)
	for i, process := range db.openMany(t, m, 4) {
		payload := []string{"a", "b"}[i%2]
		recording.Go(func() {
			for n := range events {
				key := inbox.Key{Consumer: "payments", EventID: fmt.Sprint(n), Digest: inbox.Digest("orders", []byte(payload))}
				first, err := record(t.Context(), process, store, key)
				switch {
				case errors.Is(err, inbox.ErrIDReused):
					reused.Add(1)
				case err != nil:
					t.Errorf("record: %v", err)
				case first:
					fresh.Add(1)
				}
			}
		})
	}
	recording.Wait()
	require.EqualValues(t, events, fresh.Load())
	require.EqualValues(t, 2*events, reused.Load(), "those that came second, with other content")
}

func record(ctx context.Context, db *sql.DB, store *inbox.Store, key inbox.Key) (fresh bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() {
		if commitErr := tx.Commit(); commitErr != nil {
			err = errors.Join(err, commitErr)
		}
	}()
	return store.Record(ctx, tx, key)
}

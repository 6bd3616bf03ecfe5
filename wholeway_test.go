package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/middleware"
	"github.com/watermill-outbox/outbox/schema"
)

// wholeWay is a small service: it migrates, writes events, forwards them, receives each
// twice, and answers each once.
type wholeWay struct {
	pool      *sql.DB
	schema    schema.Postgres
	publisher *outbox.Publisher
	store     *inbox.Store
	relay     *relay
}

// travel runs every statement of this module once at least, and requires that all of it
// came of them that comes of them in an ordinary database.
func travel(t *testing.T, pool *sql.DB, s schema.Postgres) {
	t.Helper()
	require.NoError(t, s.Migrate(t.Context(), pool))
	require.NoError(t, s.Migrate(t.Context(), pool), "a second time, when nothing is to do")
	require.NoError(t, s.Check(t.Context(), pool))
	w := newWholeWay(t, pool, s)

	sent := w.write(t)
	w.forward(t)
	requireUnits(t, sent, w.relay.arrived())
	w.receiveTwice(t, sent)
	w.forward(t)
	requireUnits(t, answersTo(sent), w.relay.arrived())
	w.forget(t, len(sent))
	w.useAsQueue(t)
}

func newWholeWay(t *testing.T, pool *sql.DB, s schema.Postgres) wholeWay {
	t.Helper()
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: s}, nil)
	require.NoError(t, err)
	store, err := inbox.NewStore(inbox.Config{Schema: s})
	require.NoError(t, err)
	return wholeWay{pool: pool, schema: s, publisher: publisher, store: store, relay: newRelay()}
}

// requireUnits compares unit by unit: there is no order between them.
func requireUnits(t *testing.T, want, got []event) {
	t.Helper()
	require.Equal(t, byUnit(want), byUnit(got))
}

func byUnit(events []event) map[forwarder.Unit][]event {
	units := map[forwarder.Unit][]event{}
	for _, e := range events {
		unit := forwarder.Unit{Destination: e.Destination, PartitionKey: e.Key}
		units[unit] = append(units[unit], e)
	}
	return units
}

// event is what a test compares.
type event struct {
	Destination, Key, ID string
	Payload              string
	Metadata             message.Metadata
}

// write has one statement for several messages, one each for text and for bytes, and
// one by hand. All of the publisher's have one partition key, so that they arrive in
// this order.
func (w wholeWay) write(t *testing.T) (sent []event) {
	t.Helper()
	tx, err := w.pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	for _, batch := range [][]string{{`{"a":"\u00e9\n\\"}`, "é✓𝄞", "\x00\xff", ""}, {`back\slash 'quoted' "twice"`}, {"\xfe\\134"}} {
		var msgs []*message.Message
		for _, payload := range batch {
			id := "event ö" + string(rune('0'+len(sent)))
			msg := newMessage(id, payload, outbox.PartitionKeyMetadata, `k\ey é`, `na\me`, `val\ue é`)
			msgs = append(msgs, msg)
			sent = append(sent, event{Destination: "zamówienia", Key: `k\ey é`, ID: id, Payload: payload, Metadata: msg.Metadata})
		}
		require.NoError(t, w.publisher.PublishTx(t.Context(), tx, "zamówienia", msgs...))
	}
	require.NoError(t, tx.Commit())
	return append(sent, w.writeByHand(t))
}

// writeByHand is the SQL of a producer in another language.
func (w wholeWay) writeByHand(t *testing.T) event {
	t.Helper()
	_, err := w.pool.ExecContext(t.Context(), `INSERT INTO `+w.schema.Outbox()+` (id, destination, payload)
		VALUES ($1, 'without key', '{"event":"created"}')`, "by hand")
	require.NoError(t, err)
	return event{
		Destination: "without key", Key: "by hand", ID: "by hand", Payload: `{"event":"created"}`, Metadata: message.Metadata{},
	}
}

// forward runs a forwarder until the outbox is empty.
func (w wholeWay) forward(t *testing.T) {
	t.Helper()
	w.relay.reset()
	f, err := forwarder.New(w.pool, w.relay, forwarder.Config{
		Schema: w.schema, PollInterval: 2 * time.Millisecond, RetryInitial: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond,
	}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	require.Eventually(t, func() bool { return w.count(t, w.schema.Outbox()) == 0 }, time.Minute, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

func (w wholeWay) count(t *testing.T, table string) (n int) {
	t.Helper()
	require.NoError(t, w.pool.QueryRowContext(t.Context(), `SELECT pg_catalog.count(*) FROM `+table).Scan(&n))
	return n
}

// receiveTwice delivers the events to a handler that answers each one.
func (w wholeWay) receiveTwice(t *testing.T, events []event) {
	t.Helper()
	duplicates := 0
	once, err := middleware.NewInbox(middleware.InboxConfig{
		DB: w.pool, Store: w.store, Consumer: "answers é", OnDuplicate: func(context.Context, inbox.Key) { duplicates++ },
	}, nil)
	require.NoError(t, err)
	handler := once.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		answer := newMessage("answer to "+msg.UUID, string(msg.Payload), outbox.PartitionKeyMetadata, "one")
		answer.SetContext(msg.Context())
		return nil, w.publisher.Publish("answers", answer)
	})
	for range 2 {
		for _, e := range events {
			_, err := handler(newMessage(e.ID, e.Payload))
			require.NoError(t, err)
		}
	}
	require.Equal(t, len(events), duplicates)

	_, err = handler(newMessage(events[0].ID, "something else"))
	require.ErrorIs(t, err, inbox.ErrIDReused)
}

func answersTo(sent []event) (answers []event) {
	for _, e := range sent {
		answers = append(answers, event{
			Destination: "answers", Key: "one", ID: "answer to " + e.ID, Payload: e.Payload,
			Metadata: message.Metadata{outbox.PartitionKeyMetadata: "one"},
		})
	}
	return answers
}

// forget deletes what the inbox knows.
func (w wholeWay) forget(t *testing.T, keys int) {
	t.Helper()
	deleted, err := w.store.DeleteOlderThan(t.Context(), w.pool, time.Hour)
	require.NoError(t, err)
	require.Zero(t, deleted)
	require.Equal(t, keys, w.count(t, w.schema.Inbox()))
	deleted, err = w.store.DeleteOlderThan(t.Context(), w.pool, time.Microsecond)
	require.NoError(t, err)
	require.EqualValues(t, keys, deleted)
}

// useAsQueue sends and receives through watermill-sql's publisher and subscriber.
func (w wholeWay) useAsQueue(t *testing.T) {
	t.Helper()
	publisher, err := wmsql.NewPublisher(w.pool, wmsql.PublisherConfig{SchemaAdapter: w.schema, AutoInitializeSchema: true}, nil)
	require.NoError(t, err)
	text := newMessage("event é✓𝄞", "é✓𝄞 \\\\ \"", outbox.PartitionKeyMetadata, `k\ey é✓𝄞`, `na\me é✓𝄞`, `val\ue é✓𝄞`)
	binary := newMessage("binary", "\x00\xff\\134", outbox.PartitionKeyMetadata, `k\ey é✓𝄞`)
	require.NoError(t, publisher.Publish("queue", text, binary))
	w.exec(t, `UPDATE `+w.schema.Outbox()+` SET metadata = '{}' WHERE id = 'binary'`) // as plain SQL leaves it

	subscriber, err := wmsql.NewSubscriber(w.pool, wmsql.SubscriberConfig{SchemaAdapter: w.schema, OffsetsAdapter: w.schema}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, subscriber.Close()) }()
	received, err := subscriber.Subscribe(t.Context(), "queue")
	require.NoError(t, err)
	for _, want := range []*message.Message{text, binary} {
		select {
		case got := <-received:
			require.True(t, want.Equals(got), "sent %v, received %v", want, got)
			got.Ack()
		case <-time.After(time.Minute):
			require.FailNow(t, "no message came")
		}
	}
	require.Eventually(t, func() bool { return w.count(t, w.schema.Outbox()) == 0 }, time.Minute, 5*time.Millisecond)
}

func (w wholeWay) exec(t *testing.T, statement string) {
	t.Helper()
	_, err := w.pool.ExecContext(t.Context(), statement)
	require.NoError(t, err)
}

// relay is a broker that refuses each message once.
type relay struct {
	mu      sync.Mutex
	refused map[string]bool
	events  []event
}

func newRelay() *relay { return &relay{refused: map[string]bool{}} }

var errRefusedOnce = errors.New("refused once, é")

func (r *relay) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	return forwarder.Waves(ctx, msgs, func(_ context.Context, wave []forwarder.Outgoing) []error {
		r.mu.Lock()
		defer r.mu.Unlock()
		results := make([]error, len(wave))
		for i, msg := range wave {
			if !r.refused[msg.Message.UUID] {
				r.refused[msg.Message.UUID] = true
				results[i] = forwarder.Refused(errRefusedOnce)
				continue
			}
			r.events = append(r.events, event{
				Destination: msg.Destination, Key: msg.PartitionKey, ID: msg.Message.UUID,
				Payload: string(msg.Message.Payload), Metadata: msg.Message.Metadata,
			})
		}
		return results
	})
}

func (r *relay) Publish(string, ...*message.Message) error {
	panic("the forwarder must use PublishBatch")
}
func (r *relay) Close() error { return nil }

func (r *relay) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}

// arrived lists what came, in the order in which it came.
func (r *relay) arrived() (events []event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

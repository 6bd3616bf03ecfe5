package schema_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// Rows of any producer, in plain SQL.
func TestWatermillSubscriberReceivesPlainSQL(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.DB = testdb.Open(t, driver, db.DSN)
			for _, statement := range []string{
				`(id, destination, payload) VALUES ('three columns', 'orders', '{"path":"C:\\dir","newline":"\n"}')`,
				`(id, destination, payload) VALUES ('elsewhere', 'invoices', 'x')`,
				`(id, destination, payload) VALUES ('empty', 'orders', '')`,
				`(id, destination, payload_bytes) VALUES ('binary', 'orders', '\x00ff5c')`,
				`(id, destination, partition_key, payload) VALUES ('keyed', 'orders', 'order-7', 'x')`,
				`(id, destination, partition_key, payload, metadata) VALUES ('metadata', 'orders', 'in the column', 'x',
					'{"text":"é\n\\","number":1.50,"object":{"a":[1,null]},"null":null,"_watermill_outbox_partition_key":"as written"}')`,
			} {
				_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+statement)
				require.NoError(t, err)
			}
			received := subscribe(t, db)
			for _, want := range []struct {
				id, payload string
				metadata    message.Metadata
			}{
				{id: "three columns", payload: `{"path":"C:\\dir","newline":"\n"}`, metadata: message.Metadata{}},
				{id: "empty", metadata: message.Metadata{}},
				{id: "binary", payload: "\x00\xff\\", metadata: message.Metadata{}},
				{id: "keyed", payload: "x", metadata: message.Metadata{schema.PartitionKeyMetadata: "order-7"}},
				{id: "metadata", payload: "x", metadata: message.Metadata{
					"text": "é\n\\", "number": "1.50", "object": `{"a": [1, null]}`, "null": "null",
					schema.PartitionKeyMetadata: "as written",
				}},
			} {
				got := receive(t, received)
				require.Equal(t, want.id, got.UUID)
				require.Equal(t, want.payload, string(got.Payload))
				require.Equal(t, want.metadata, got.Metadata)
				got.Ack()
			}
			requireWaiting(t, db, "elsewhere")
		})
	}
}

// The stock subscriber acknowledges the last row of what it selected, and no other.
func TestEachRowIsAcknowledgedByItself(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, id := range []string{"1", "2", "3", "4"} {
		insert(t, db, id, "orders", "")
	}
	received := subscribe(t, db)
	remaining := []string{"1", "2", "3", "4"}
	for len(remaining) > 0 {
		msg := receive(t, received)
		require.Equal(t, remaining[0], msg.UUID)
		require.Equal(t, remaining, waiting(t, db), "what is not acknowledged is there")
		msg.Ack()
		remaining = remaining[1:]
		requireWaiting(t, db, remaining...)
	}
}

func TestAcknowledgementDeletesThatRowOnly(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "lower seq, elsewhere", "invoices", "")
	insert(t, db, "lower seq, in work", "orders", "")
	insert(t, db, "acknowledged", "orders", "")
	insert(t, db, "higher seq", "invoices", "")

	ctx, cancel := context.WithCancel(t.Context())
	first, err := newWatermillSubscriber(t, db.DB, db.Schema).Subscribe(ctx, "orders")
	require.NoError(t, err)
	inWork := receive(t, first)
	require.Equal(t, "lower seq, in work", inWork.UUID)

	second := subscribe(t, db)
	msg := receive(t, second)
	require.Equal(t, "acknowledged", msg.UUID)
	msg.Ack()
	requireWaiting(t, db, "lower seq, elsewhere", "lower seq, in work", "higher seq")

	cancel() // the first subscriber goes without an acknowledgement
	msg = receive(t, second)
	require.Equal(t, inWork.UUID, msg.UUID)
	msg.Ack()
	requireWaiting(t, db, "lower seq, elsewhere", "higher seq")
}

// One subscriber has the first event of an order in work: another must not overtake it.
func TestUnitIsInOneHandAtATime(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "a-1", "orders", "a")
	insert(t, db, "a-2", "orders", "a")
	first := receive(t, subscribe(t, db))
	require.Equal(t, "a-1", first.UUID)

	second := subscribe(t, db)
	insert(t, db, "b-1", "orders", "b")
	insert(t, db, "a-3", "orders", "a")
	insert(t, db, "b-2", "orders", "b")
	for _, id := range []string{"b-1", "b-2"} {
		msg := receive(t, second)
		require.Equal(t, id, msg.UUID)
		msg.Ack()
	}
	requireWaiting(t, db, "a-1", "a-2", "a-3")
}

func TestSubscribersShareUnitsInOrder(t *testing.T) {
	t.Parallel()
	const subscribers, units, perUnit = 6, 8, 25
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.DB = testdb.Open(t, driver, db.DSN)
			want := map[string][]string{}
			var msgs []*message.Message
			for i := range units * perUnit {
				msg := message.NewMessage(fmt.Sprint(i), nil)
				key := fmt.Sprint(i % units)
				msg.Metadata.Set(schema.PartitionKeyMetadata, key)
				msgs = append(msgs, msg)
				want[key] = append(want[key], msg.UUID)
			}
			require.NoError(t, newWatermillPublisher(t, db.DB, db.Schema).Publish("orders", msgs...))

			var (
				mutex     sync.Mutex
				group     sync.WaitGroup
				closeOnce sync.Once
				got       = map[string][]string{}
				hands     = map[int]bool{}
				// shared is closed when a second one has something: the first might do it all before.
				shared = make(chan struct{})
			)
			for subscriber := range subscribers {
				received := subscribe(t, db)
				group.Go(func() {
					for msg := range received {
						mutex.Lock()
						key := msg.Metadata.Get(schema.PartitionKeyMetadata)
						got[key] = append(got[key], msg.UUID)
						if hands[subscriber] = true; len(hands) == 2 {
							closeOnce.Do(func() { close(shared) })
						}
						mutex.Unlock()
						select {
						case <-shared:
						case <-t.Context().Done():
						}
						msg.Ack()
					}
				})
			}
			t.Cleanup(group.Wait) // after the end of the test's context
			requireWaiting(t, db)
			mutex.Lock()
			defer mutex.Unlock()
			require.Equal(t, want, got, "each event once, in order")
		})
	}
}

// What a forwarder has left behind.
func TestPublishedAndWaitingRowsAreNotDelivered(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "published", "orders", "a")
	insert(t, db, "refused", "orders", "b")
	insert(t, db, "behind refused", "orders", "b")
	insert(t, db, "due again", "orders", "c")
	insert(t, db, "fresh", "orders", "a")
	_, err := db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET
		published_at = CASE id WHEN 'published' THEN now() END,
		next_attempt_at = CASE id WHEN 'refused' THEN now() + interval '1 hour' WHEN 'due again' THEN now() END`)
	require.NoError(t, err)

	received := subscribe(t, db)
	for _, id := range []string{"due again", "fresh"} {
		msg := receive(t, received)
		require.Equal(t, id, msg.UUID)
		msg.Ack()
	}
	requireWaiting(t, db, "published", "refused", "behind refused")

	_, err = db.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET next_attempt_at = now() WHERE id = 'refused'`)
	require.NoError(t, err)
	for _, id := range []string{"refused", "behind refused"} {
		msg := receive(t, received)
		require.Equal(t, id, msg.UUID)
		msg.Ack()
	}
	requireWaiting(t, db, "published")
}

// An operator's lock, say.
func TestForeignLockHoldsBackItsUnitOnly(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "a-1", "orders", "a")
	insert(t, db, "a-2", "orders", "a")
	insert(t, db, "b-1", "orders", "b")
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), `SELECT FROM `+db.Schema.Outbox()+` WHERE id = 'a-1' FOR UPDATE`)
	require.NoError(t, err)

	received := subscribe(t, db)
	msg := receive(t, received)
	require.Equal(t, "b-1", msg.UUID)
	msg.Ack()
	requireWaiting(t, db, "a-1", "a-2")
	require.NoError(t, tx.Rollback())
	require.Equal(t, "a-1", receive(t, received).UUID)
}

func TestNackedMessageComesAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "1", "orders", "")
	received := subscribe(t, db)
	for range 3 {
		msg := receive(t, received)
		require.Equal(t, "1", msg.UUID)
		require.Equal(t, []string{"1"}, waiting(t, db))
		msg.Nack()
	}
	receive(t, received).Ack()
	requireWaiting(t, db)
}

// After the deadline the stock subscriber commits, with nothing acknowledged. What comes
// too late must not count for the delivery that is then on its way.
func TestMissedAckDeadlineLosesNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "1", "orders", "")
	deadline := 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	hasty, err := newWatermillSubscriber(t, db.DB, db.Schema, func(c *wmsql.SubscriberConfig) { c.AckDeadline = &deadline }).Subscribe(ctx, "orders")
	require.NoError(t, err)
	first, second := receive(t, hasty), receive(t, hasty)
	require.Equal(t, first.UUID, second.UUID)
	<-second.Context().Done()
	cancel()
	for range hasty { // until it has ended
	}
	first.Ack()
	second.Ack()
	require.Equal(t, []string{"1"}, waiting(t, db))

	receive(t, subscribe(t, db)).Ack()
	requireWaiting(t, db)
}

func TestEndOfSubscriptionLosesNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "1", "orders", "")

	ctx, cancel := context.WithCancel(t.Context())
	cancelled, err := newWatermillSubscriber(t, db.DB, db.Schema).Subscribe(ctx, "orders")
	require.NoError(t, err)
	receive(t, cancelled)
	cancel()

	closed := newWatermillSubscriber(t, db.DB, db.Schema)
	received, err := closed.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	receive(t, received)
	require.NoError(t, closed.Close())

	receive(t, subscribe(t, db)).Ack()
	requireWaiting(t, db)
}

// The connection breaks between delivery and acknowledgement, as it does when the
// process dies.
func TestLostConnectionLosesNothing(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			operator := db.DB
			db.DB = testdb.Open(t, driver, db.DSN)
			insert(t, db, "1", "orders", "")
			received := subscribe(t, db)
			msg := receive(t, received)
			tx, ok := wmsql.TxFromContext(msg.Context())
			require.True(t, ok)
			var backend int
			require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&backend))
			require.NoError(t, testdb.EndSession(t.Context(), operator, backend))
			msg.Ack()

			again := receive(t, received)
			require.Equal(t, "1", again.UUID)
			again.Ack()
			requireWaiting(t, db)
		})
	}
}

// Of the stock subscriber, whatever its adapter: neither a failed attempt nor a missed
// deadline is undone. Effects belong into a transaction of their own, behind the inbox.
func TestSubscribersTransactionIsNoPlaceForEffects(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*message.Message){
		"nack":   func(msg *message.Message) { msg.Nack() },
		"no ack": func(msg *message.Message) { <-msg.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			effects := `"` + db.Schema.Schema + `".effects`
			_, err := db.ExecContext(t.Context(), `CREATE TABLE `+effects+` (attempt text)`)
			require.NoError(t, err)
			insert(t, db, "1", "orders", "")
			deadline := 3 * time.Second
			received := subscribe(t, db, func(c *wmsql.SubscriberConfig) { c.AckDeadline = &deadline })

			msg := receive(t, received)
			tx, ok := wmsql.TxFromContext(msg.Context())
			require.True(t, ok)
			_, err = tx.ExecContext(t.Context(), `INSERT INTO `+effects+` VALUES ('failed')`)
			require.NoError(t, err)
			fail(msg)
			again := receive(t, received)
			require.Equal(t, msg.UUID, again.UUID, "the message is not lost")
			again.Ack()
			go func() {
				for msg := range received { // where that came after the deadline
					msg.Ack()
				}
			}()
			requireWaiting(t, db)

			var attempts int
			require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+effects).Scan(&attempts))
			require.Equal(t, 1, attempts, "but what the failed attempt did is there")
		})
	}
}

// Whatever the database's default isolation is, what another subscriber has settled in
// the meantime is passed by.
func TestSelectPassesByWhatIsGone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "gone", "orders", "")
	insert(t, db, "next", "orders", "")
	strict := testdb.Open(t, "postgres", testdb.WithSetting(t, db.DSN, "default_transaction_isolation", "serializable"))
	tx, err := strict.BeginTx(t.Context(), &sql.TxOptions{Isolation: db.Schema.SubscribeIsolationLevel()})
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), `SELECT`) // the first snapshot
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), `DELETE FROM `+db.Schema.Outbox()+` WHERE id = 'gone'`)
	require.NoError(t, err)

	query := db.Schema.SelectQuery("orders", "", db.Schema)
	row, err := db.Schema.UnmarshalMessage(tx.QueryRowContext(t.Context(), query.Query, query.Args...))
	require.NoError(t, err)
	require.Equal(t, "next", row.Msg.UUID)
}

// Behind the first row of a unit that is in work, the others are found behind any number
// of its rows.
func TestManyRowsOfAUnitInWorkHideNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		SELECT 'hot-' || n, 'orders', 'hot', 'x' FROM generate_series(1, 5000) AS n`)
	require.NoError(t, err)
	insert(t, db, "cold-1", "orders", "cold")
	require.Equal(t, "hot-1", receive(t, subscribe(t, db)).UUID)
	require.Equal(t, "cold-1", receive(t, subscribe(t, db)).UUID)
}

// A queue grows and shrinks faster than statistics follow. Without care the planner takes
// a destination for rare, and reads the whole table for each message.
func TestSelectDoesNotDependOnStatistics(t *testing.T) {
	t.Parallel()
	for name, statistics := range map[string]string{
		"none":         `SELECT`,
		"of the table": `ANALYZE `,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			_, err := db.ExecContext(t.Context(), `ALTER TABLE `+db.Schema.Outbox()+` SET (autovacuum_enabled = false)`)
			require.NoError(t, err)
			_, err = db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload)
				SELECT n, 'other', repeat('x', 300) FROM generate_series(1, 10000) AS n`)
			require.NoError(t, err)
			if statistics == `ANALYZE ` {
				statistics += db.Schema.Outbox()
			}
			_, err = db.ExecContext(t.Context(), statistics)
			require.NoError(t, err)

			query := db.Schema.SelectQuery("orders", "", db.Schema)
			var plan string
			require.NoError(t, db.QueryRowContext(t.Context(), `EXPLAIN (FORMAT JSON) `+query.Query, query.Args...).Scan(&plan))
			require.Contains(t, plan, "Index Scan")
			for _, costly := range []string{"Seq Scan", "Sort", "Bitmap"} {
				require.NotContains(t, plan, costly)
			}
		})
	}
}

package schema_test

import (
	"context"
	"database/sql"
	"net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

const (
	wait = 30 * time.Second
	tick = 5 * time.Millisecond
)

var drivers = []string{"postgres", "pgx"}

func newWatermillPublisher(t *testing.T, db wmsql.ContextExecutor, adapter wmsql.SchemaAdapter) *wmsql.Publisher {
	t.Helper()
	publisher, err := wmsql.NewPublisher(db, wmsql.PublisherConfig{SchemaAdapter: adapter}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	return publisher
}

type subscriberOption func(*wmsql.SubscriberConfig)

func newWatermillSubscriber(t *testing.T, db *sql.DB, tables schema.Postgres, options ...subscriberOption) *wmsql.Subscriber {
	t.Helper()
	config := wmsql.SubscriberConfig{
		SchemaAdapter:  tables,
		OffsetsAdapter: tables,
		PollInterval:   tick,
		ResendInterval: tick,
		RetryInterval:  tick,
	}
	for _, option := range options {
		option(&config)
	}
	subscriber, err := wmsql.NewSubscriber(db, config, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
	return subscriber
}

// subscribe is to the destination orders.
func subscribe(t *testing.T, db *testdb.DB, options ...subscriberOption) <-chan *message.Message {
	t.Helper()
	received, err := newWatermillSubscriber(t, db.DB, db.Schema, options...).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	return received
}

// receive takes the next message, without acknowledging it.
func receive(t *testing.T, received <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg := <-received:
		require.NotNil(t, msg, "the subscription has ended")
		return msg
	case <-time.After(wait):
		require.Fail(t, "no message came")
		return nil
	}
}

func insert(t *testing.T, db *testdb.DB, id, destination, key string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+`
		(id, destination, partition_key, payload) VALUES ($1, $2, $3, 'x')`, id, destination, key)
	require.NoError(t, err)
}

// waiting lists the ids in the outbox, locked or not.
func waiting(t *testing.T, db *testdb.DB) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT id FROM `+db.Schema.Outbox()+` ORDER BY seq`)
	require.NoError(t, err)
	defer rows.Close()
	ids := []string{}
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(t, rows.Err())
	return ids
}

func requireWaiting(t *testing.T, db *testdb.DB, ids ...string) {
	t.Helper()
	deadline := time.Now().Add(wait)
	for range time.Tick(tick) {
		if got := waiting(t, db); len(got) == len(ids) || time.Now().After(deadline) {
			require.ElementsMatch(t, ids, got)
			return
		}
	}
}

func TestConsumerGroupIsRefused(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			insert(t, db, "1", "orders", "")
			subscriber := newWatermillSubscriber(t, testdb.Open(t, driver, db.DSN), db.Schema,
				func(c *wmsql.SubscriberConfig) { c.ConsumerGroup = "billing" })
			_, err := subscriber.Subscribe(t.Context(), "orders")
			require.ErrorIs(t, err, schema.ErrConsumerGroup)
			require.ErrorContains(t, err, `"billing"`)
			require.Equal(t, []string{"1"}, waiting(t, db))
		})
	}
}

// Whoever calls the adapter without Subscribe's first queries is refused as well.
func TestEveryQueryOfAConsumerGroupIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, query := range []wmsql.Query{
		db.Schema.SelectQuery("orders", "billing", db.Schema),
		db.Schema.AckMessageQuery("orders", wmsql.Row{Offset: 1}, "billing"),
	} {
		_, err := db.ExecContext(t.Context(), query.Query, query.Args...)
		require.ErrorIs(t, err, schema.ErrConsumerGroup)
	}
}

// With offsets that are kept elsewhere nothing would ever be acknowledged.
func TestAdapterIsRefusedBesideAnother(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			tables := testdb.New(t)
			db := testdb.Open(t, driver, tables.DSN)
			other := tables.Schema
			other.Name = "other"
			for _, query := range []wmsql.Query{
				tables.Schema.SelectQuery("orders", "", wmsql.DefaultPostgreSQLOffsetsAdapter{}),
				tables.Schema.SelectQuery("orders", "", other),
				tables.Schema.SelectQuery("orders", "", (*schema.Postgres)(nil)),
				tables.Schema.NextOffsetQuery("orders", ""), // another SchemaAdapter asks for it
			} {
				_, err := db.ExecContext(t.Context(), query.Query, query.Args...)
				require.ErrorIs(t, err, schema.ErrOtherAdapter)
			}
			spelledOut := schema.Postgres{Schema: tables.Schema.Schema, Name: "outbox"}
			query := tables.Schema.SelectQuery("orders", "", &spelledOut)
			_, err := db.ExecContext(t.Context(), query.Query, query.Args...)
			require.NoError(t, err)
		})
	}
}

func TestInitializeSchemaCreatesNothing(t *testing.T) {
	t.Parallel()
	empty := testdb.NewEmpty(t)
	adapter := empty.Schema
	publisher, err := wmsql.NewPublisher(empty.DB, wmsql.PublisherConfig{SchemaAdapter: adapter, AutoInitializeSchema: true}, nil)
	require.NoError(t, err)
	subscriber := newWatermillSubscriber(t, empty.DB, adapter, func(c *wmsql.SubscriberConfig) { c.InitializeSchema = true })
	msg := message.NewMessage("1", nil)

	require.ErrorIs(t, schema.Missing(publisher.Publish("orders", msg)), schema.ErrNotMigrated)
	_, err = subscriber.Subscribe(t.Context(), "orders")
	require.ErrorIs(t, schema.Missing(err), schema.ErrNotMigrated)
	require.Empty(t, tablesIn(t, empty))

	require.NoError(t, adapter.Migrate(t.Context(), empty.DB))
	require.NoError(t, publisher.Publish("orders", msg))
	received, err := subscriber.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.Equal(t, "1", receive(t, received).UUID)
}

// Without InitializeSchema as well: the alternative is a subscriber that only logs.
func TestSubscribeFailsWithoutTables(t *testing.T) {
	t.Parallel()
	empty := testdb.NewEmpty(t)
	_, err := newWatermillSubscriber(t, empty.DB, empty.Schema).Subscribe(t.Context(), "orders")
	require.ErrorIs(t, schema.Missing(err), schema.ErrNotMigrated)
}

func TestAdapterRefusesInvalidNames(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	invalid := schema.Postgres{Schema: db.Schema.Schema, Name: "inbox"}
	require.ErrorIs(t, newWatermillPublisher(t, db.DB, invalid).Publish("orders", message.NewMessage("1", nil)), schema.ErrInvalidName)
	_, err := newWatermillSubscriber(t, db.DB, invalid).Subscribe(t.Context(), "orders")
	require.ErrorIs(t, err, schema.ErrInvalidName)
}

// A producer may write and nothing else; a subscriber needs no more than a forwarder.
func TestAdapterNeedsFewRights(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	producer := openAs(t, db, `INSERT`)
	publisher, err := wmsql.NewPublisher(producer, wmsql.PublisherConfig{SchemaAdapter: db.Schema, AutoInitializeSchema: true}, nil)
	require.NoError(t, err)
	require.NoError(t, publisher.Publish("orders", message.NewMessage("1", nil)))

	received, err := newWatermillSubscriber(t, openAs(t, db, `SELECT, UPDATE, DELETE`), db.Schema).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	receive(t, received).Ack()
	requireWaiting(t, db)
}

// openAs connects as a new role with the given rights on the outbox.
func openAs(t *testing.T, db *testdb.DB, rights string) *sql.DB {
	t.Helper()
	role := "role_" + testdb.RandomName(t)
	for _, statement := range []string{
		`CREATE ROLE ` + role + ` LOGIN PASSWORD 'secret'`,
		`GRANT USAGE ON SCHEMA "` + db.Schema.Schema + `" TO ` + role,
		`GRANT ` + rights + ` ON ` + db.Schema.Outbox() + ` TO ` + role,
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		require.NoError(t, err)
	})
	dsn, err := url.Parse(db.DSN)
	require.NoError(t, err)
	dsn.User = url.UserPassword(role, "secret")
	return testdb.Open(t, "postgres", dsn.String())
}

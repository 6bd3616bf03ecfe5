package schema_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// The table as a queue without a broker, through watermill-sql's publisher and
// subscriber.
func ExamplePostgres_queue() {
	db, queue, drop := testdb.Example()
	defer drop()
	queue.Name = "jobs" // beside the outbox that a forwarder reads
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := queue.Migrate(ctx, db); err != nil {
		fmt.Println(err)
		return
	}

	subscriber, err := wmsql.NewSubscriber(db, wmsql.SubscriberConfig{
		SchemaAdapter:  queue,
		OffsetsAdapter: queue,
		PollInterval:   50 * time.Millisecond,
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer subscriber.Close()
	received, err := subscriber.Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}

	if err := enqueue(ctx, db, queue); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		msg := <-received
		fmt.Println(msg.UUID, string(msg.Payload))
		msg.Ack() // deletes its row
	}
	// Output:
	// event-1 created
	// event-2 paid
}

func enqueue(ctx context.Context, db *sql.DB, queue schema.Postgres) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	// The business row goes here: INSERT INTO orders …
	publisher, err := wmsql.NewPublisher(tx, wmsql.PublisherConfig{SchemaAdapter: queue}, nil)
	if err != nil {
		return err
	}
	created := message.NewMessage("event-1", []byte("created"))
	created.Metadata.Set(schema.PartitionKeyMetadata, "order-42")
	paid := message.NewMessage("event-2", []byte("paid"))
	paid.Metadata.Set(schema.PartitionKeyMetadata, "order-42") // in this order
	if err := publisher.Publish("orders", created, paid); err != nil {
		return err
	}
	return tx.Commit()
}

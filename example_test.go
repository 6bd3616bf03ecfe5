package outbox_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

func ExamplePublisher_PublishTx() {
	db, tables, drop := testdb.Example()
	defer drop()

	if err := run(context.Background(), db, tables); err != nil {
		fmt.Println(err)
		return
	}
	var rows int
	if err := db.QueryRowContext(context.Background(), `SELECT count(*) FROM `+tables.Outbox()).Scan(&rows); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("rows in the outbox:", rows)
	// Output: rows in the outbox: 1
}

func run(ctx context.Context, db *sql.DB, tables schema.Postgres) error {
	if err := tables.Migrate(ctx, db); err != nil {
		return err
	}
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: tables}, nil)
	if err != nil {
		return err
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	// The business row goes here: INSERT INTO orders …
	msg := message.NewMessage("6b5e3f0e-event", []byte(`{"event":"created"}`))
	msg.Metadata.Set(outbox.PartitionKeyMetadata, "order-42") // all events of this order, in order
	if err := publisher.PublishTx(ctx, tx, "orders", msg); err != nil {
		return err
	}
	return tx.Commit() // both rows, or neither
}

package pgxtx_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
	"github.com/watermill-outbox/outbox/pgxtx"
)

// An order and its event are written in one transaction of pgx.
func ExampleWrap() {
	ctx := context.Background()
	pool, tables, drop := testdb.ExampleNative()
	defer drop()
	db := stdlib.OpenDBFromPool(pool) // for what takes a *sql.DB
	defer db.Close()
	if err := tables.Migrate(ctx, db); err != nil {
		log.Panic(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE `+tables.Schema+`.orders (id text PRIMARY KEY)`); err != nil {
		log.Panic(err)
	}
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: tables}, nil)
	if err != nil {
		log.Panic(err)
	}

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO `+tables.Schema+`.orders (id) VALUES ($1)`, "order-1"); err != nil {
			return err
		}
		event := message.NewMessage("event-1", []byte(`{"event":"created"}`))
		return publisher.PublishTx(ctx, pgxtx.Wrap(tx), "orders", event)
	})
	if err != nil {
		log.Panic(err)
	}

	var destination, id, payload string
	err = pool.QueryRow(ctx, `SELECT destination, id, payload FROM `+tables.Outbox()).Scan(&destination, &id, &payload)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(destination, id, payload)
	// Output: orders event-1 {"event":"created"}
}

// The inbox on a pool of pgx: the handler finds a pgx.Tx.
func ExampleNewBeginner() {
	ctx := context.Background()
	pool, tables, drop := testdb.ExampleNative()
	defer drop()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	if err := tables.Migrate(ctx, db); err != nil {
		log.Panic(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE `+tables.Schema+`.debits (order_id text PRIMARY KEY)`); err != nil {
		log.Panic(err)
	}
	store, err := inbox.NewStore(inbox.Config{Schema: tables})
	if err != nil {
		log.Panic(err)
	}
	once, err := middleware.NewInbox(middleware.InboxConfig{
		Beginner: pgxtx.NewBeginner(pool),
		Store:    store,
		Consumer: "payments", // outside of a router, which would name the handler
	}, nil)
	if err != nil {
		log.Panic(err)
	}

	debit := once.NoPublish(func(msg *message.Message) error {
		tx, ok := outbox.TxFromContext[pgx.Tx](msg.Context())
		if !ok {
			return errors.New("the inbox middleware is missing")
		}
		_, err := tx.Exec(msg.Context(), `INSERT INTO `+tables.Schema+`.debits (order_id) VALUES ($1)`, msg.UUID)
		return err
	})
	for range 2 {
		if err := debit(message.NewMessage("order-1", nil)); err != nil {
			log.Panic(err)
		}
	}

	var debits int
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM `+tables.Schema+`.debits`).Scan(&debits); err != nil {
		log.Panic(err)
	}
	fmt.Println("debits:", debits)
	// Output: debits: 1
}

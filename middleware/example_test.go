package middleware_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
)

// A payment service debits once for each order, however often the event arrives, and
// emits payment.made through its outbox in the same transaction.
func ExampleInbox() {
	ctx := context.Background()
	db, tables, drop := testdb.Example()
	defer drop()
	if err := tables.Migrate(ctx, db); err != nil {
		log.Panic(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE `+tables.Schema+`.debits (order_id text PRIMARY KEY)`); err != nil {
		log.Panic(err)
	}

	store, err := inbox.NewStore(inbox.Config{Schema: tables})
	if err != nil {
		log.Panic(err)
	}
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: tables}, nil)
	if err != nil {
		log.Panic(err)
	}
	handled := make(chan struct{}, 2)
	once, err := middleware.NewInbox(middleware.InboxConfig{
		DB:     db,
		Store:  store,
		Outbox: publisher,
		OnDuplicate: func(_ context.Context, key inbox.Key) {
			fmt.Println("dropped a duplicate of", key.EventID)
		},
	}, nil)
	if err != nil {
		log.Panic(err)
	}

	debit := func(msg *message.Message) ([]*message.Message, error) {
		tx, ok := outbox.TxFromContext[*sql.Tx](msg.Context())
		if !ok {
			return nil, errors.New("the inbox middleware is missing")
		}
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO `+tables.Schema+`.debits (order_id) VALUES ($1)`, msg.UUID)
		if err != nil {
			return nil, err
		}
		fmt.Println("debited", msg.UUID)
		return []*message.Message{message.NewMessage("payment-of-"+msg.UUID, msg.Payload)}, nil
	}

	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil) // stands for a broker
	router := message.NewDefaultRouter(nil)
	router.AddMiddleware(announce(handled))
	router.AddHandler("payments", "orders", pubSub, "payment.made", publisher, once.Middleware(debit))
	go func() {
		if err := router.Run(ctx); err != nil {
			log.Panic(err)
		}
	}()
	<-router.Running()

	for range 2 {
		if err := pubSub.Publish("orders", message.NewMessage("order-1", []byte(`{"amount":10}`))); err != nil {
			log.Panic(err)
		}
		<-handled
	}
	if err := router.Close(); err != nil {
		log.Panic(err)
	}

	var debits int
	var event string
	err = db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM `+tables.Schema+`.debits),
		(SELECT destination || ' ' || id FROM `+tables.Outbox()+`)`).Scan(&debits, &event)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println("debits:", debits)
	fmt.Println("in the outbox:", event)
	// Output:
	// debited order-1
	// dropped a duplicate of order-1
	// debits: 1
	// in the outbox: payment.made payment-of-order-1
}

// announce tells the example when a message has been handled.
func announce(handled chan<- struct{}) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			defer func() { handled <- struct{}{} }()
			return h(msg)
		}
	}
}

package forwarder_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Any Watermill publisher will do; package forwarder/kafka has one that sends in
// batches.
func ExampleForwarder_Run() {
	db, tables, drop := testdb.Example()
	defer drop()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := tables.Migrate(ctx, db); err != nil {
		fmt.Println(err)
		return
	}
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	defer pubSub.Close()
	orders, err := pubSub.Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}

	relay, err := forwarder.New(db, pubSub, forwarder.Config{Schema: tables}, watermill.NopLogger{})
	if err != nil {
		fmt.Println(err)
		return
	}
	stopped := make(chan error, 1)
	go func() { stopped <- relay.Run(ctx) }()

	// A producer in any language names three columns.
	_, err = db.ExecContext(ctx, `INSERT INTO `+tables.Outbox()+` (id, destination, payload)
		VALUES ('event-1', 'orders', '{"event":"created"}')`)
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := <-orders
	fmt.Println(msg.UUID, string(msg.Payload))
	msg.Ack()

	stop()
	fmt.Println("stopped:", <-stopped)
	// Output:
	// event-1 {"event":"created"}
	// stopped: <nil>
}

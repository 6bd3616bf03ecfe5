package forwarder_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// An existing router gets a forwarder with one line. It needs no Run of its own, and
// ends with the router, after the handlers.
func ExampleForwarder_RouterPlugin() {
	ctx := context.Background()
	db, tables, drop := testdb.Example()
	defer drop()
	if err := tables.Migrate(ctx, db); err != nil {
		log.Panic(err)
	}
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}) // stands for a broker

	relay, err := forwarder.New(db, pubSub, forwarder.Config{Schema: tables}, nil)
	if err != nil {
		log.Panic(err)
	}
	handled := make(chan struct{})
	router := message.NewDefaultRouter(nil)
	router.AddPlugin(relay.RouterPlugin)
	router.AddConsumerHandler("ship", "orders", pubSub, func(msg *message.Message) error {
		fmt.Println("shipping", msg.UUID)
		close(handled)
		return nil
	})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }()
	<-router.Running()

	_, err = db.ExecContext(ctx, `INSERT INTO `+tables.Outbox()+` (id, destination, payload)
		VALUES ('order-1', 'orders', '{"event":"created"}')`)
	if err != nil {
		log.Panic(err)
	}
	<-handled
	fmt.Println("closed:", router.Close())
	fmt.Println("stopped:", <-stopped)
	// Output:
	// shipping order-1
	// closed: <nil>
	// stopped: <nil>
}

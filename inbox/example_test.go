package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A service that consumes without Watermill records the event first in its own
// transaction, and skips it if it is not fresh.
func ExampleStore_Record() {
	ctx := context.Background()
	db, tables, drop := testdb.Example()
	defer drop()
	if err := tables.Migrate(ctx, db); err != nil {
		log.Panic(err)
	}

	store, err := inbox.NewStore(inbox.Config{Schema: tables})
	if err != nil {
		log.Panic(err)
	}
	handle := func(eventID string, payload []byte) error {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer tx.Rollback() // after the commit it does nothing

		fresh, err := store.Record(ctx, tx, inbox.Key{
			Consumer: "payments",
			EventID:  eventID,
			Digest:   inbox.Digest("orders", payload),
		})
		if err != nil {
			return err
		}
		if !fresh {
			fmt.Println(eventID, "was handled before")
			return nil
		}
		fmt.Println(eventID, "is debited") // in tx
		return tx.Commit()
	}

	for _, payload := range []string{"created", "created", "cancelled"} {
		if err := handle("order-1", []byte(payload)); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// order-1 is debited
	// order-1 was handled before
	// inbox: the event id was used before with different content: consumer "payments", event id "order-1"
}

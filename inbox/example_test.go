package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"

	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/schema"
)

// A service that consumes without Watermill records the event first in its own
// transaction, and skips it if it is not fresh.
func ExampleStore_Record() {
	ctx := context.Background()
	db, tables, closeDB := openExampleDB(ctx, "example_inbox_record")
	defer closeDB()

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

// openExampleDB opens the test server's database with tables in a schema of their
// own, which closeDB drops.
func openExampleDB(ctx context.Context, name string) (db *sql.DB, tables schema.Postgres, closeDB func()) {
	dsn := os.Getenv("POSTGRES_DSN")
	if dsn == "" {
		dsn = "postgres://outbox:outbox@127.0.0.1:54329/outbox?sslmode=disable"
	}
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		log.Panic(err)
	}
	tables = schema.Postgres{Schema: fmt.Sprintf("%s_%d", name, os.Getpid())}
	if err := tables.Migrate(ctx, db); err != nil {
		log.Panic(err)
	}
	return db, tables, func() {
		if _, err := db.ExecContext(ctx, `DROP SCHEMA `+tables.Schema+` CASCADE`); err != nil {
			log.Panic(err)
		}
		if err := db.Close(); err != nil {
			log.Panic(err)
		}
	}
}

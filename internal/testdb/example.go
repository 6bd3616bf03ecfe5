package testdb

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"

	"github.com/watermill-outbox/outbox/schema"
)

// Example is NewEmpty for Example functions, which have no *testing.T. What cannot
// work panics, which fails the example.
func Example() (db *sql.DB, tables schema.Postgres, drop func()) {
	random := make([]byte, 6)
	must(rand.Read(random))
	name := "example_" + hex.EncodeToString(random)

	parsed := must(url.Parse(address()))
	query := parsed.Query()
	query.Set("search_path", noSchema)
	parsed.RawQuery = query.Encode()
	db = must(sql.Open("postgres", parsed.String()))
	return db, schema.Postgres{Schema: name}, func() {
		must(db.ExecContext(context.Background(), `DROP SCHEMA IF EXISTS `+name+` CASCADE`))
		if err := db.Close(); err != nil {
			panic(err)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("example: %v", err))
	}
	return value
}

func address() string {
	if dsn := os.Getenv("POSTGRES_DSN"); dsn != "" {
		return dsn
	}
	return defaultDSN
}

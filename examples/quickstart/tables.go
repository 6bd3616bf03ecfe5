package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-outbox/outbox/schema"
)

const (
	price          = 10
	openingBalance = 1_000_000
)

// createTables makes the outbox and the inbox, and beside them the services' own
// tables. Nothing forbids a second payment of an order: only the inbox prevents it,
// so that the audit would see one.
func createTables(ctx context.Context, db *sql.DB, tables schema.Postgres) error {
	if err := tables.Migrate(ctx, db); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, `
		CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL);
		CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);
		CREATE TABLE payments (id text PRIMARY KEY, order_id text NOT NULL, amount bigint NOT NULL);`)
	if err != nil {
		return fmt.Errorf("create tables: %w", err)
	}
	_, err = db.ExecContext(ctx, `INSERT INTO accounts (id, balance) VALUES ('customer', $1)`, openingBalance)
	if err != nil {
		return fmt.Errorf("open the customer's account: %w", err)
	}
	return nil
}

package schema_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// Each change of an order has its event, whoever makes it.
func ExamplePostgres_CaptureTrigger() {
	db, tables, drop := testdb.Example()
	defer drop()
	ctx := context.Background()
	if err := tables.Migrate(ctx, db); err != nil {
		fmt.Println(err)
		return
	}
	orders := `"` + tables.Schema + `".orders`
	if _, err := db.ExecContext(ctx, `CREATE TABLE `+orders+` (id bigint PRIMARY KEY, status text)`); err != nil {
		fmt.Println(err)
		return
	}
	if err := captureOrders(ctx, db, tables); err != nil {
		fmt.Println(err)
		return
	}

	_, err := db.ExecContext(ctx, `INSERT INTO `+orders+` VALUES (42, 'new'); UPDATE `+orders+` SET status = 'paid'`)
	if err != nil {
		fmt.Println(err)
		return
	}
	rows, err := db.QueryContext(ctx, `SELECT destination, partition_key, payload FROM `+tables.Outbox()+` ORDER BY seq`)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		var destination, key, payload string
		if err := rows.Scan(&destination, &key, &payload); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(destination, key, payload)
	}
	if err := rows.Err(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// orders 42 {"event":"INSERT","status":"new"}
	// orders 42 {"event":"UPDATE","status":"paid"}
}

// captureOrders may run each time that a service starts.
func captureOrders(ctx context.Context, db *sql.DB, tables schema.Postgres) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	trigger, err := tables.CaptureTrigger(ctx, tx, schema.Capture{
		Table: "orders", TableSchema: tables.Schema, Destination: "orders",
		Payload: `format('{"event":"%s","status":%s}', tg_op, to_json(changed.status))`,
	})
	if err != nil {
		return err
	}
	if err := trigger.Apply(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

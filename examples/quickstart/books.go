package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-outbox/outbox/schema"
)

// books is what the tables say.
type books struct {
	orders   map[string]string   // id → status
	payments map[string][]string // order id → payment ids
	pending  map[event]bool      // in the outbox
	dead     map[event]bool      // in the dead letters
	balance  int
}

func readBooks(ctx context.Context, db *sql.DB, tables schema.Postgres) (b books, err error) {
	// One snapshot for all of them.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return books{}, fmt.Errorf("read the tables: %w", err)
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	b = books{orders: map[string]string{}, payments: map[string][]string{}, pending: map[event]bool{}, dead: map[event]bool{}}
	err = errors.Join(
		eachPair(ctx, tx, `SELECT id, status FROM orders`, func(id, status string) { b.orders[id] = status }),
		eachPair(ctx, tx, `SELECT id, order_id FROM payments`, func(id, orderID string) {
			b.payments[orderID] = append(b.payments[orderID], id)
		}),
		eachPair(ctx, tx, `SELECT destination, id FROM `+tables.Outbox(), func(destination, id string) {
			b.pending[event{destination, id}] = true
		}),
		eachPair(ctx, tx, `SELECT destination, id FROM `+tables.DeadLetters(), func(destination, id string) {
			b.dead[event{destination, id}] = true
		}),
		tx.QueryRowContext(ctx, `SELECT balance FROM accounts WHERE id = 'customer'`).Scan(&b.balance),
	)
	if err != nil {
		return books{}, fmt.Errorf("read the tables: %w", err)
	}
	return b, nil
}

func eachPair(ctx context.Context, tx *sql.Tx, query string, take func(a, b string)) error {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var a, b string
		if err := rows.Scan(&a, &b); err != nil {
			return err
		}
		take(a, b)
	}
	return rows.Err()
}

// committed lists the events that must leave: one for each order and each payment.
func (b books) committed() map[event]bool {
	events := make(map[event]bool, 2*len(b.orders))
	for id := range b.orders {
		events[event{ordersTopic, id}] = true
	}
	for _, ids := range b.payments {
		for _, id := range ids {
			events[event{paymentsTopic, id}] = true
		}
	}
	return events
}

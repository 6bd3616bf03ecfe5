package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox"
)

// orderService takes orders, and notes when they are paid.
type orderService struct {
	db     *sql.DB
	events *outbox.Publisher
	router *message.Router
}

func (d *demo) newOrderService() (*orderService, error) {
	service, err := d.newService("order-service", paymentsTopic)
	if err != nil {
		return nil, err
	}
	shop := &orderService{db: d.db, events: service.outbox, router: service.router}
	once := service.inbox.NoPublish(shop.markPaid)
	service.router.AddConsumerHandler("paid-orders", d.servers.Topic(paymentsTopic), service.subscriber, once)
	return shop, nil
}

// place writes the order and its event in one transaction. It never talks to the broker.
func (s *orderService) place(ctx context.Context, tx *sql.Tx, orderID string) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, status) VALUES ($1, 'new')`, orderID); err != nil {
		return err
	}
	return s.events.PublishTx(ctx, tx, ordersTopic, message.NewMessage(orderID, []byte(`{"event":"created"}`)))
}

// placeByPlainSQL does the same as a service in any other language would.
func placeByPlainSQL(ctx context.Context, tx *sql.Tx, orderID string) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, status) VALUES ($1, 'new')`, orderID); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO outbox (id, destination, payload)
		VALUES ($1, 'orders', '{"event":"created"}')`, orderID)
	return err
}

// markPaid handles payment.made.
func (s *orderService) markPaid(msg *message.Message) error {
	tx, ok := outbox.TxFromContext[*sql.Tx](msg.Context())
	if !ok {
		return outbox.ErrNoTx
	}
	var event paymentMade
	if err := json.Unmarshal(msg.Payload, &event); err != nil {
		return fmt.Errorf("payment event %s: %w", msg.UUID, err)
	}
	_, err := tx.ExecContext(msg.Context(), `UPDATE orders SET status = 'paid' WHERE id = $1`, event.OrderID)
	return err
}

const (
	plainSQLEvery = 4
	rollbackEvery = 10
)

// placed is what the order service knows of its orders: those whose COMMIT succeeded,
// and those that it took back.
type placed struct {
	committed, rolledBack []string
	byPlainSQL            int // of the committed ones
}

// placeOrders commits n orders and rolls some more back, after both their rows were
// written.
func (s *orderService) placeOrders(ctx context.Context, n int) (placed, error) {
	var done placed
	for i := range n {
		place := s.place
		if i%plainSQLEvery == 0 {
			place = placeByPlainSQL
			done.byPlainSQL++
		}
		id, err := s.inTx(ctx, place, (*sql.Tx).Commit)
		if err != nil {
			return done, err
		}
		done.committed = append(done.committed, id)
		if i%rollbackEvery != 0 {
			continue
		}
		if id, err = s.inTx(ctx, place, (*sql.Tx).Rollback); err != nil {
			return done, err
		}
		done.rolledBack = append(done.rolledBack, id)
	}
	return done, nil
}

type placeFunc func(ctx context.Context, tx *sql.Tx, orderID string) error

func (s *orderService) inTx(ctx context.Context, place placeFunc, end func(*sql.Tx) error) (orderID string, err error) {
	orderID = watermill.NewUUID()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return "", fmt.Errorf("order %s: begin: %w", orderID, err)
	}
	if err := place(ctx, tx, orderID); err != nil {
		return "", errors.Join(fmt.Errorf("order %s: %w", orderID, err), tx.Rollback())
	}
	if err := end(tx); err != nil {
		return "", fmt.Errorf("order %s: %w", orderID, err)
	}
	return orderID, nil
}

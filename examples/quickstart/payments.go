package main

import (
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox"
)

// paymentMade is the event that the payment service emits.
type paymentMade struct {
	Event   string `json:"event"`
	OrderID string `json:"order_id"`
}

func (d *demo) newPaymentService() (*message.Router, error) {
	service, err := d.newService("payment-service", ordersTopic)
	if err != nil {
		return nil, err
	}
	// The inbox decorates the handler itself: each attempt of Retry is a transaction of its
	// own.
	once := service.inbox.Middleware(debit)
	service.router.AddHandler("debit", d.servers.Topic(ordersTopic), service.subscriber, paymentsTopic, service.outbox, once)
	return service.router, nil
}

// debit handles order.created. What it does in the transaction of the inbox, and the
// event that it returns, is committed together with the inbox key, or not at all.
func debit(msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	tx, ok := outbox.TxFromContext[*sql.Tx](ctx)
	if !ok {
		return nil, outbox.ErrNoTx
	}
	orderID, paymentID := msg.UUID, watermill.NewUUID()
	if _, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance - $1 WHERE id = 'customer'`, price); err != nil {
		return nil, fmt.Errorf("debit order %s: %w", orderID, err)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO payments (id, order_id, amount) VALUES ($1, $2, $3)`, paymentID, orderID, price)
	if err != nil {
		return nil, fmt.Errorf("debit order %s: %w", orderID, err)
	}
	payload, err := json.Marshal(paymentMade{Event: "payment.made", OrderID: orderID})
	if err != nil {
		return nil, fmt.Errorf("debit order %s: %w", orderID, err)
	}
	return []*message.Message{message.NewMessage(paymentID, payload)}, nil
}

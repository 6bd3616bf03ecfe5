package conformance_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox"
)

// committing is what the suite takes for the publisher: each Publish is a transaction
// of its own, written through the outbox and committed.
type committing struct {
	db    *sql.DB
	write write

	outbox    *outbox.Publisher
	committed atomic.Int64
}

// write is one of the ways to hand messages and a transaction to an outbox.Publisher.
type write func(ctx context.Context, p *outbox.Publisher, tx *sql.Tx, topic string, msgs []*message.Message) error

func publishTx(ctx context.Context, p *outbox.Publisher, tx *sql.Tx, topic string, msgs []*message.Message) error {
	return p.PublishTx(ctx, tx, topic, msgs...)
}

func publishInTx(_ context.Context, p *outbox.Publisher, tx *sql.Tx, topic string, msgs []*message.Message) error {
	return p.InTx(tx).Publish(topic, msgs...)
}

func publishFromContext(ctx context.Context, p *outbox.Publisher, tx *sql.Tx, topic string, msgs []*message.Message) error {
	ctx = outbox.ContextWithTx(ctx, tx)
	carrying := make([]*message.Message, len(msgs))
	for i, msg := range msgs {
		carrying[i] = msg.Copy() // the suite's own message must not keep a transaction that has ended
		carrying[i].SetContext(ctx)
	}
	return p.Publish(topic, carrying...) //nolint:contextcheck // the messages carry it
}

func (c *committing) Publish(topic string, msgs ...*message.Message) error {
	ctx := msgs[0].Context()
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback()
	if err := c.write(ctx, c.outbox, tx, topic, msgs); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	c.committed.Add(int64(len(msgs)))
	return nil
}

func (c *committing) Close() error { return c.outbox.Close() }

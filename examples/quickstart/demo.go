package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
	"github.com/watermill-outbox/outbox/inbox"
)

// Destinations of events: topics of Kafka, exchanges of RabbitMQ.
const (
	ordersTopic   = "orders"
	paymentsTopic = "payments"
)

// progressPoll is how often the database is asked how far things are.
const progressPoll = 50 * time.Millisecond

// stalledAfter is how long nothing may move: an event that is lost would be awaited
// for ever.
const stalledAfter = 10 * time.Second

var errStalled = fmt.Errorf("nothing has moved for %s", stalledAfter)

// demo is one run: the services, and what they have to say about themselves.
type demo struct {
	servers *servers.Servers
	db      *sql.DB
	screen  *screen

	// abort ends the run early, with the reason.
	abort context.CancelCauseFunc

	handled           atomic.Int64 // messages, duplicates included
	duplicatesDropped atomic.Int64
}

// runDemo returns the figures once they could be counted, also if they show that
// something is wrong.
func runDemo(ctx context.Context, opts options) (_ *figures, err error) {
	ctx, abort := context.WithCancelCause(ctx)
	defer func() {
		// What failed because the run had ended says that alone, not why.
		if reason := context.Cause(ctx); err != nil && reason != nil && !errors.Is(err, reason) {
			err = fmt.Errorf("%w (%w)", err, reason)
		}
		abort(nil)
	}()
	d := &demo{screen: newScreen(opts.orders), abort: abort}
	defer d.screen.close()

	d.servers, err = servers.Open(ctx, opts.broker, "quickstart")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.servers.Close(ctx)) }()
	d.screen.linef("servers", "%s", d.servers.Description)
	if err := d.servers.CreateTopics(ctx, ordersTopic, paymentsTopic); err != nil {
		return nil, err
	}
	d.db, err = sql.Open("postgres", d.servers.PostgresDSN)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.db.Close()) }()
	if err := createTables(ctx, d.db, d.servers.Tables()); err != nil {
		return nil, err
	}
	return d.run(ctx, opts.orders)
}

// run starts the services and the forwarder, lets them work until nothing is left to
// do, stops them and takes stock. It does so too if they have not got there in time:
// then the figures say what is lost.
func (d *demo) run(ctx context.Context, orders int) (_ *figures, err error) {
	var parts tasks
	defer func() { err = errors.Join(err, parts.stop()) }()
	payments, err := d.newPaymentService() //nolint:contextcheck // a message brings its context
	if err != nil {
		return nil, err
	}
	parts.start(ctx, d.abort, payments.Run)
	shop, err := d.newOrderService() //nolint:contextcheck // a message brings its context
	if err != nil {
		return nil, err
	}
	parts.start(ctx, d.abort, shop.router.Run)
	placed, err := shop.placeOrders(ctx, orders)
	if err != nil {
		return nil, err
	}
	d.screen.linef("order service", "committed: %d (by plain SQL: %d); rolled back on purpose: %d",
		len(placed.committed), placed.byPlainSQL, len(placed.rolledBack))

	// The broker has none of it yet. The orders stand, whatever becomes of the forwarder.
	relay := &supervisor{addresses: d.servers.Addresses, dieAfter: deaths(orders), onDeath: d.reportDeath}
	parts.start(ctx, d.abort, relay.run)
	unsettled := d.awaitSettled(ctx, orders)
	if unsettled != nil && !errors.Is(unsettled, errTimeOver) && !errors.Is(unsettled, errStalled) {
		return nil, unsettled
	}
	// Stopped before the books are read: nothing changes any more.
	unstopped := parts.stop()
	figures, err := d.takeStock(ctx, account{
		placed:            placed,
		deaths:            relay.deaths(),
		duplicatesDropped: int(d.duplicatesDropped.Load()),
	})
	return figures, errors.Join(unsettled, unstopped, err)
}

func (d *demo) takeStock(ctx context.Context, said account) (*figures, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	figures, faults, err := audit(ctx, d.db, d.servers.Addresses, said)
	if err != nil {
		return nil, err
	}
	d.screen.linef("payment service", "debits: %d; paid in all: %d", figures.debits, figures.debits*price)
	d.screen.linef(d.servers.BrokerName(), "records: %d; distinct events: %d", figures.forwarded+figures.redelivered, figures.forwarded)
	d.screen.linef("inboxes", "duplicates dropped: %d", figures.duplicatesDropped)
	return &figures, errors.Join(faults...)
}

// awaitSettled returns once every order is paid, the outbox is empty and every record
// in the broker, duplicates too, has been handled: then no part has anything left to do.
// It gives up with ctx, or when nothing moves any more.
func (d *demo) awaitSettled(ctx context.Context, orders int) (err error) {
	published, err := openRecords(d.servers.Addresses)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, published.close()) }()
	query := `SELECT (SELECT count(*) FROM orders WHERE status = 'paid'), (SELECT count(*) FROM ` + d.servers.Tables().Outbox() + `)`
	var now, before struct {
		paid, waiting    int
		handled, records int64
	}
	moved := time.Now()
	err = poll(ctx, func() (done bool, err error) {
		// In this order. What handled messages gave rise to was in the outbox by then; once
		// that is empty, it is among the records.
		now.handled = d.handled.Load()
		if err := d.db.QueryRowContext(ctx, query).Scan(&now.paid, &now.waiting); err != nil {
			return false, err
		}
		d.screen.progress(now.paid)
		if now.records, err = countRecords(ctx, published); err != nil {
			return false, err
		}
		if now != before {
			before, moved = now, time.Now()
		} else if time.Since(moved) > stalledAfter {
			err = errStalled
		}
		return now.paid == orders && now.waiting == 0 && now.handled >= now.records, err
	})
	if err != nil {
		return fmt.Errorf("%d of %d orders are paid, %d events wait in the outbox, %d of %d records are handled: %w",
			now.paid, orders, now.waiting, now.handled, now.records, err)
	}
	return nil
}

func poll(ctx context.Context, condition func() (done bool, err error)) error {
	ticker := time.NewTicker(progressPoll)
	defer ticker.Stop()
	for {
		done, err := condition()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case done || err != nil:
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func (d *demo) reportDeath(unsettled int) {
	d.screen.linef("forwarder", "killed hard between publish and settle; events to be sent again: %d or more", unsettled)
}

// countHandled is a middleware around all others.
func (d *demo) countHandled(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if err == nil {
			d.handled.Add(1)
		}
		return produced, err
	}
}

func (d *demo) countDuplicate(context.Context, inbox.Key) { d.duplicatesDropped.Add(1) }

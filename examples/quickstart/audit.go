package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
)

// account is what the parts of the demo say that they did. The audit holds it against
// what Postgres and the broker say.
type account struct {
	placed

	deaths            int
	duplicatesDropped int
}

// figures are counted from the tables and the topics; only duplicatesDropped is the
// inboxes' own count.
type figures struct {
	orders            int // rows
	rolledBack        int // transactions of which nothing is anywhere
	forwarded         int // distinct events in the broker: of orders and of payments
	redelivered       int // records in the broker beyond the first of each event
	duplicatesDropped int // by the inboxes
	debits            int // payment rows
	lost              int // committed events that are neither in the broker, the outbox nor the dead letters
	phantoms          int // events in the broker that nobody committed
	doubleDebits      int // payment rows beyond the first of each order
}

func (f figures) String() string {
	return fmt.Sprintf("orders=%d rolled_back=%d forwarded=%d redelivered=%d duplicates_dropped=%d debits=%d "+
		"lost=%d phantoms=%d double_debits=%d",
		f.orders, f.rolledBack, f.forwarded, f.redelivered, f.duplicatesDropped, f.debits,
		f.lost, f.phantoms, f.doubleDebits)
}

// audit reads the tables and the topics, counts, and lists all that is wrong. Nothing
// may be at work any more.
func audit(ctx context.Context, db *sql.DB, addresses servers.Addresses, said account) (figures, []error, error) {
	tables, err := readBooks(ctx, db, addresses.Tables())
	if err != nil {
		return figures{}, nil, err
	}
	topics, err := readDeliveries(ctx, addresses)
	if err != nil {
		return figures{}, nil, err
	}
	counted := count(tables, topics, said)
	return counted, faults(counted, tables, topics, said), nil
}

func count(tables books, topics *deliveries, said account) figures {
	counted := figures{
		orders:            len(tables.orders),
		forwarded:         len(topics.records),
		redelivered:       topics.repeated(),
		duplicatesDropped: said.duplicatesDropped,
	}
	for _, payments := range tables.payments {
		counted.debits += len(payments)
		counted.doubleDebits += len(payments) - 1
	}
	committed := tables.committed()
	for event := range committed {
		if topics.records[event] == 0 && !tables.pending[event] && !tables.dead[event] {
			counted.lost++
		}
	}
	for event := range topics.records {
		if !committed[event] {
			counted.phantoms++
		}
	}
	for _, id := range said.rolledBack {
		if !exists(id, tables, topics) {
			counted.rolledBack++
		}
	}
	return counted
}

// exists looks for any trace of an order.
func exists(id string, tables books, topics *deliveries) bool {
	order := event{ordersTopic, id}
	_, ordered := tables.orders[id]
	_, paid := tables.payments[id]
	return ordered || paid || tables.pending[order] || tables.dead[order] || topics.records[order] > 0
}

// faults says in words what is wrong. None: the books balance.
func faults(f figures, tables books, topics *deliveries, said account) []error {
	unpaid, missing, strangers := 0, 0, 0
	for id, status := range tables.orders {
		if status != "paid" || len(tables.payments[id]) == 0 {
			unpaid++
		}
	}
	for _, id := range said.committed {
		if _, ok := tables.orders[id]; !ok {
			missing++
		}
	}
	for id := range tables.payments {
		if _, ok := tables.orders[id]; !ok {
			strangers++
		}
	}
	spent := openingBalance - tables.balance
	var found []error
	check := func(wrong bool, format string, args ...any) {
		if wrong {
			found = append(found, fmt.Errorf(format, args...)) //nolint:err113 // text for people
		}
	}
	check(f.lost > 0, "%d committed events are lost: neither in %s, nor in the outbox, nor in the dead letters", f.lost, topics.broker)
	check(f.phantoms > 0, "%d events in %s belong to no committed row", f.phantoms, topics.broker)
	check(f.doubleDebits > 0, "%d debits too many: orders were debited more than once", f.doubleDebits)
	check(f.debits != f.orders, "%d orders, but %d debits", f.orders, f.debits)
	check(unpaid > 0, "%d orders are not paid", unpaid)
	check(strangers > 0, "%d debits are for orders that do not exist", strangers)
	check(missing > 0, "%d orders whose COMMIT succeeded are not in the table", missing)
	check(f.orders > len(said.committed), "%d orders in the table, but only %d were committed", f.orders, len(said.committed))
	check(f.rolledBack != len(said.rolledBack), "%d orders that were rolled back left a trace", len(said.rolledBack)-f.rolledBack)
	check(spent != f.orders*price, "the customer's account lacks %d, the orders cost %d", spent, f.orders*price)
	check(len(tables.pending) > 0, "%d events are still in the outbox", len(tables.pending))
	check(len(tables.dead) > 0, "%d events are dead letters", len(tables.dead))
	check(len(topics.otherKey) > 0, "%d records in %s have another %s than their event id",
		len(topics.otherKey), topics.broker, topics.keyName)
	check(said.deaths == 0, "the forwarder was never killed")
	check(said.deaths > 0 && f.redelivered == 0, "the forwarder was killed %d times, but nothing was sent twice", said.deaths)
	check(f.duplicatesDropped < f.redelivered, "%d duplicates in %s, but only %d were dropped",
		f.redelivered, topics.broker, f.duplicatesDropped)
	return found
}

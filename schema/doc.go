// Package schema owns the tables of the outbox and the inbox: their names, their
// definition and their migrations.
//
// A producer in any language writes to the outbox with
//
//	INSERT INTO outbox (id, destination, payload) VALUES ($1, 'orders', $2)
//
// in the transaction of its business row. Every other column has a default.
// Payloads that text cannot hold (a NUL byte, bytes that are not UTF-8) go into
// payload_bytes instead of payload; Postgres would store a bytea expression that
// is assigned to payload as the text "\x…", without an error.
//
// # Watermill's own SQL publisher and subscriber
//
// A Postgres value is also the SchemaAdapter and the OffsetsAdapter of watermill-sql v3,
// on the same table. With its Publisher, on a *sql.Tx, a service writes to the outbox
// through the publisher that it knows. With its Subscriber the table is a queue without
// a broker: whoever acknowledges a message deletes its row.
//
//   - Give the queue a table of its own (Postgres.Name), and run no forwarder on it. A
//     forwarder takes the rows of every destination: each would go to the broker or to a
//     subscriber, whichever is faster. And a subscriber reads past the rows of other
//     destinations whenever it looks for its own.
//   - All subscribers of a destination share its rows, each event for one of them, up to a
//     hundred at once. A unit of order (destination, partition key) is in one hand at a
//     time and in order; a message that fails holds back its unit, and the subscriber that
//     has it. There are no consumer groups: ErrConsumerGroup.
//   - Delivery is at-least-once: what is not acknowledged within AckDeadline, or when the
//     subscription or the connection ends, comes again.
//   - Give the publisher a *sql.Tx, as an outbox needs anyway. On a *sql.DB, lib/pq and
//     some modes of pgx send a statement and its parameters separately: behind PgBouncer
//     another client's statement may take their place, and the message is lost without
//     an error.
//   - Keep effects out of the transaction that watermill-sql puts into a message's context:
//     it commits what a failed attempt wrote, along with the next attempt or after
//     AckDeadline. The inbox (package middleware) has one of its own, and undoes what
//     failed.
//   - The table comes from Migrate. InitializeSchema and AutoInitializeSchema only look
//     whether it is there.
//   - Each subscription holds a connection while its message is handled: the pool must
//     allow as many (SetMaxOpenConns), and those that handlers use besides.
//   - A subscriber that is lost without a word keeps its message locked until Postgres
//     notices: set idle_in_transaction_session_timeout on its role, above AckDeadline.
//   - watermill-sql allows letters, digits and -$:._ in a destination.
package schema

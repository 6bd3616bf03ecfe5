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
package schema

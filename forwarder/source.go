package forwarder

import (
	"context"
	"database/sql"
	"errors"
)

// ErrUnfitSource says that a Source cannot work until somebody has changed something: the error that wraps
// it says what.
var ErrUnfitSource = errors.New("forwarder: the source cannot work")

// Source is where a forwarder takes new rows from, in place of looking for them in the table. The
// package wal has one. It is safe for concurrent use.
type Source interface {
	// Check says what is missing at the server, and how to mend it; db is the forwarder's. Errors
	// that waiting does not mend wrap ErrUnfitSource.
	Check(ctx context.Context, db *sql.DB) error
	// Watch sees to it that the source does no harm, until ctx ends: in each replica, also in
	// those that have no stream.
	Watch(ctx context.Context)
	// Prepare makes what a stream needs. That may take as long as the longest transaction that
	// writes at this moment, until ctx ends; the table is read meanwhile.
	Prepare(ctx context.Context) error
	// Open begins to read. It waits while another replica does, until ctx ends.
	Open(ctx context.Context) (Stream, error)
}

// Stream reads the rows of transactions in the order of their commits, and those of a transaction in
// the order of their inserts. It is for one reader; Settled may be called by another.
type Stream interface {
	// Next returns the next changes, as many as are there and at least one; it waits for
	// that, until ctx ends. After an error that is not ctx's, the stream is of no more use.
	Next(ctx context.Context) ([]Change, error)
	// Settled says that nothing up to a position, and with it, is needed again: each change was
	// confirmed by its broker, or stays in the table for later.
	Settled(upTo Position)
	// Confirmed is the position in the write-ahead log up to which the stream has brought all
	// that was committed, and all of that is settled.
	Confirmed() uint64
	// Close ends the stream, and tells the server what was settled. A stream that is not closed
	// keeps a connection.
	Close(ctx context.Context) error
}

// Position is where a change stands: the start of its transaction's commit record in the write-ahead
// log, and its place among the rows of that transaction, from 0. The zero value is before all others.
type Position struct {
	Commit uint64
	Index  int
}

// Before says whether p is before q.
func (p Position) Before(q Position) bool {
	return p.Commit < q.Commit || p.Commit == q.Commit && p.Index < q.Index
}

// Change is a row that a transaction has inserted into the outbox, as it was then.
type Change struct {
	Position Position
	// Transaction is the id of the row's transaction, the lower 32 bits of it. The log has a
	// commit before other sessions see it.
	Transaction uint32
	Seq         int64
	ID          string
	// Destination and PartitionKey are the row's columns; an empty key stands for the ID.
	Destination, PartitionKey string
	Payload                   []byte
	// Metadata is a JSON object.
	Metadata []byte
}

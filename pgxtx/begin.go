package pgxtx

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-outbox/outbox"
)

// Beginner begins transactions on a pool, for middleware.InboxConfig. It is safe for
// concurrent use. NewBeginner makes one.
type Beginner struct{ pool *pgxpool.Pool }

// NewBeginner returns a Beginner on pool, which stays the caller's to close. The pool
// must allow a connection for each message in flight (MaxConns).
func NewBeginner(pool *pgxpool.Pool) Beginner { return Beginner{pool: pool} }

// Begin begins a READ COMMITTED transaction, whatever the database's default. As with
// database/sql, and unlike pgx's own, it ends with ctx: when ctx ends before the commit,
// the transaction is rolled back at once and its connection is closed, as pgx does with
// a connection whose statement is cancelled. A commit after that fails. Commit or
// Rollback must be called in any case; it returns the connection to the pool.
//
// outbox.TxFromContext[pgx.Tx] finds the transaction for handlers. It offers what pgx's
// own does, but for TxFromContext[*pgxpool.Tx].
func (b Beginner) Begin(ctx context.Context) (outbox.Tx, error) {
	if b.pool == nil {
		return nil, errors.New("pgxtx: begin: the pool is nil")
	}
	tx, err := b.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("pgxtx: begin: %w", err)
	}
	return &wrapped{tx: bind(ctx, tx), end: ctx}, nil
}

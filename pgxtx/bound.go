package pgxtx

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/jackc/pgx/v5"
)

// idle is the transaction status of a connection that is in no transaction
// (PostgreSQL manual, "Message Formats", ReadyForQuery).
const idle = 'I'

// boundTx is a transaction that ends with its context. Everything but the end of it is
// pgx's own.
//
// A connection of pgx is not safe for concurrent use, and when the context ends, the
// handler may be in the midst of a statement. The one thing that may be done to it then
// is to close its socket: Postgres rolls back as soon as it notices, which is at once
// between statements, and pgx cancels the statement that it is waiting for.
type boundTx struct {
	pgx.Tx

	ctx    context.Context //nolint:containedctx // what this type is about
	socket net.Conn
	stop   func() bool

	mu sync.Mutex
	// ended says that Commit or Rollback has begun. The connection may be another
	// transaction's from then on, so that the socket must be left alone.
	ended bool
	// cut says that ctx ended first, and the socket is closed.
	cut bool
}

func bind(ctx context.Context, tx pgx.Tx) *boundTx {
	t := &boundTx{Tx: tx, ctx: ctx, socket: tx.Conn().PgConn().Conn()}
	t.stop = context.AfterFunc(ctx, t.cutOff)
	return t
}

func (t *boundTx) cutOff() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.cut = true
	_ = t.socket.Close() // whatever it says, the connection is of no use any more
}

// takeEnd reports whether the caller is the one to end the transaction.
func (t *boundTx) takeEnd() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.ended = true
	t.stop()
	return true
}

// Commit commits, unless the transaction's context has ended.
func (t *boundTx) Commit(ctx context.Context) error {
	if !t.takeEnd() {
		return pgx.ErrTxClosed
	}
	if err := t.ctx.Err(); err != nil {
		_ = t.rollBack(ctx) // the reason is the better error
		return fmt.Errorf("pgxtx: not committed: %w", err)
	}
	// Postgres would answer a COMMIT outside of a transaction with a mere warning.
	if t.wasEndedByAStatement() {
		_ = t.rollBack(ctx)
		return errEndedByAStatement
	}
	return t.Tx.Commit(ctx) //nolint:wrapcheck // pgx's own words
}

var errEndedByAStatement = fmt.Errorf("%w: it was ended by a statement", pgx.ErrTxClosed)

func (t *boundTx) wasEndedByAStatement() bool { return t.Conn().PgConn().TxStatus() == idle }

// Rollback rolls back, also where ctx has ended.
func (t *boundTx) Rollback(ctx context.Context) error {
	if !t.takeEnd() {
		return pgx.ErrTxClosed
	}
	endedBefore := t.wasEndedByAStatement()
	err := t.rollBack(ctx)
	switch {
	case t.cut:
		return fmt.Errorf("%w: its context ended, and its connection was closed: %w", pgx.ErrTxClosed, t.ctx.Err())
	case endedBefore:
		return errEndedByAStatement
	default:
		return err
	}
}

// rollBack returns the connection to the pool, which drops it if it is closed, or if
// the rollback does not come through.
func (t *boundTx) rollBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	return t.Tx.Rollback(ctx) //nolint:wrapcheck // pgx's own words
}

package pgxtx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-outbox/outbox"
)

// endTimeout bounds how long the end of a transaction is waited for where no context
// does. After it, pgx closes the connection, and Postgres rolls back by itself.
const endTimeout = 10 * time.Second

// Wrap makes tx an outbox.Tx, for Publisher.PublishTx, Publisher.InTx,
// outbox.ContextWithTx and inbox.Store.Record. A nil tx gives a nil outbox.Tx, which
// those refuse. tx may be a nested transaction of pgx (a savepoint): what is written in
// it exists if and only if the outermost transaction commits, and with it everything in
// between.
//
// outbox.TxFromContext[pgx.Tx] finds tx again. End the transaction through tx itself,
// with a context of yours: Commit and Rollback of the result do the same within at most
// 10 seconds. The result is as safe for concurrent use as tx, which is not at all.
//
// Its errors are those of pgx; where the transaction has ended already, they wrap
// sql.ErrTxDone as well as pgx.ErrTxClosed.
func Wrap(tx pgx.Tx) outbox.Tx {
	if tx == nil {
		return nil
	}
	return &wrapped{tx: tx, end: context.Background()}
}

type wrapped struct {
	tx pgx.Tx
	// end is the context of Commit and Rollback, which have no parameter for it. Where
	// it cannot end, endTimeout stands in.
	end context.Context //nolint:containedctx // a transaction lives under one, as in database/sql
}

var _ outbox.Tx = (*wrapped)(nil)

// Unwrap is for outbox.TxFromContext.
func (w *wrapped) Unwrap() any { return w.tx }

func (w *wrapped) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := w.tx.Exec(ctx, query, args...)
	if err != nil {
		return nil, inWordsOfSQL(err)
	}
	return result{tag}, nil
}

func (w *wrapped) Commit() error { return w.endWith(w.tx.Commit) }

func (w *wrapped) Rollback() error { return w.endWith(w.tx.Rollback) }

func (w *wrapped) endWith(end func(ctx context.Context) error) error {
	ctx := w.end
	if ctx.Done() == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, endTimeout)
		defer cancel()
	}
	return inWordsOfSQL(end(ctx))
}

// inWordsOfSQL adds database/sql's name for a transaction that has ended: it is the one
// that code which does not import pgx knows.
func inWordsOfSQL(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w", sql.ErrTxDone, err)
	}
	return err
}

type result struct{ tag pgconn.CommandTag }

func (r result) RowsAffected() (int64, error) { return r.tag.RowsAffected(), nil }

func (r result) LastInsertId() (int64, error) {
	return 0, errors.New("pgxtx: Postgres has no LastInsertId: use RETURNING")
}

package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// afterFailure keeps those whom the database has failed from asking it all the time.
const afterFailure = 20 * time.Millisecond

// errUnresolved says that nobody can tell whether a transaction was committed.
var errUnresolved = errors.New("ledger: it is not known whether a transaction was committed")

// tolerate takes a transaction that failed for rolled back, where the database is
// expected to fail. Before its COMMIT it cannot be anything else, and what became of
// that was looked up.
func (w *writer) tolerate(ctx context.Context, err error) error {
	if w.config.Faults == nil || errors.Is(err, errUnresolved) {
		return err
	}
	w.book.rollBack(w.written)
	w.book.fail(err)
	pause(ctx, afterFailure)
	return nil
}

// resolve returns nil if the transaction that wrote e was committed although its COMMIT
// failed, else the failure.
func (w *writer) resolve(ctx context.Context, e event, failure error) error {
	if w.config.Faults == nil {
		return failure
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.config.Patience)
	defer cancel()
	for {
		committed, err := w.isCommitted(ctx, e)
		switch {
		case err == nil && committed:
			w.book.commitUnanswered()
			return nil
		case err == nil:
			return failure
		case !pause(ctx, afterFailure):
			return fmt.Errorf("%w: %w, then %w", errUnresolved, failure, err)
		}
	}
}

// isCommitted waits for the transaction to end, by the lock that it holds on its
// aggregate: its COMMIT may still be on the way.
func (w *writer) isCommitted(ctx context.Context, e event) (committed bool, err error) {
	tx, err := w.ledgerDB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, `SELECT FROM `+w.tables.aggregates+` WHERE key = $1 FOR UPDATE`, e.key); err != nil {
		return false, err
	}
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM `+w.tables.events+` WHERE event_id = $1)`, e.id).Scan(&committed)
	return committed, err
}

package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// claimAndRehearse settles the claimed rows and takes that back, for a while after a batch
// could not be settled. What keeps the table from that (a CREATE INDEX that locks it, a
// trigger or a foreign key of somebody else's) may last: without a rehearsal the same
// messages would be sent again at each attempt.
func (w *worker) claimAndRehearse(ctx context.Context, tx *sql.Tx, turn claimFunc) (claim, error) {
	taken, err := turn(ctx, tx)
	if err != nil || len(taken.rows) == 0 || time.Now().UnixNano() >= w.rehearseUntil.Load() {
		return taken, err
	}
	if err := w.settler.rehearse(ctx, tx, taken.rows); err != nil {
		w.rehearseAfter(err)
		return claim{}, fmt.Errorf("rehearse, nothing was published: %w", err)
	}
	return taken, nil
}

// rehearseAfter lasts beyond the wait before the next attempt, and its claim. It takes an
// answer of Postgres: a session that was lost says nothing of the table.
func (w *worker) rehearseAfter(err error) {
	if !errors.Is(err, errRowsGone) && !isAnswer(err) {
		return
	}
	w.rehearseUntil.Store(time.Now().Add(w.config.RetryMax + 4*w.config.DatabaseTimeout).UnixNano())
}

func (s settler) rehearse(ctx context.Context, tx *sql.Tx, rows []row) error {
	seqs := make([]int64, len(rows))
	for i, r := range rows {
		seqs[i] = r.seq
	}
	if _, err := tx.ExecContext(ctx, `SAVEPOINT rehearsal`); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	if err := s.settle(ctx, tx, seqs); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT rehearsal`); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

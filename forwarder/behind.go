package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
)

// errLeftBehind has the table drained, and the stream begun anew.
var errLeftBehind = errors.New("forwarder: rows are left in the table that the stream has passed")

// behindInterval is between two looks for rows that the stream has passed.
const behindInterval = 10 * time.Second

// lookBehind looks for rows that are to be sent and that the stream brings no more: those that
// somebody has changed after it did. It returns an error if there are some.
func (f *feed) lookBehind(ctx context.Context, stream Stream) error {
	for ctx.Err() == nil {
		position, seqs, err := f.firstRows(ctx)
		if err != nil {
			return fmt.Errorf("look for rows that the stream has passed: %w", err)
		}
		sleep(ctx, behindInterval, nil)
		for stream.Confirmed() < position && ctx.Err() == nil { // they may be about to come
			sleep(ctx, behindInterval, nil)
		}
		if len(seqs) == 0 || ctx.Err() != nil {
			continue
		}
		var left bool
		if err := f.read(ctx, f.leftQuery, []any{f.away(), seqs}, &left); err != nil {
			return fmt.Errorf("look for rows that the stream has passed: %w", err)
		}
		if left {
			return errLeftBehind
		}
	}
	return nil
}

// firstRows returns the first rows of the flow, and a position of the log before which they were
// committed.
func (f *feed) firstRows(ctx context.Context) (position uint64, seqs pq.Int64Array, err error) {
	err = f.read(ctx, f.firstQuery, []any{f.away()}, &position, &seqs)
	return position, seqs, err
}

func (f *feed) away() pq.StringArray {
	return append(pq.StringArray{}, f.worker.claimer.marks.leftOut()...) // never NULL
}

func (f *feed) read(ctx context.Context, query string, args []any, targets ...any) error {
	ctx, cancel := context.WithTimeout(ctx, f.worker.config.DatabaseTimeout)
	defer cancel()
	return inReadOnlyTx(ctx, f.worker.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, query, args...).Scan(targets...) //nolint:wrapcheck // the callers do
	})
}

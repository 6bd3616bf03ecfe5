package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrInvalidAge says that DeletePublished or DeleteDeadLetters was called with an age that
// is not positive. Nothing was deleted.
var ErrInvalidAge = errors.New("forwarder: the age must be positive")

// retentionBatch is the most rows that one transaction reads, and deletes.
const retentionBatch = 1000

// DeletePublished deletes rows that were published more than age ago, by the database's
// clock, and returns how many. It does once what Config.Retention does now and then: in
// transactions of at most 1000 rows, without waiting for rows that are locked, and never one
// that is not published. It reads the rows that were written more than age ago, whether they
// are published or not. Several calls at once do no harm. After an error, also at the end of
// ctx, the number is that of the batches that are committed. An age of zero or less is
// ErrInvalidAge.
func (a *Admin) DeletePublished(ctx context.Context, age time.Duration) (deleted int64, err error) {
	if age <= 0 {
		return 0, fmt.Errorf("%w: it is %s", ErrInvalidAge, age)
	}
	return a.deletePublished(ctx, age, &spans{}, noPace)
}

// publishedWindow is what a batch has found.
type publishedWindow struct {
	rows, last   int64
	old, deleted int64
	// young says that all its rows were written after the cutoff. So were all behind them,
	// none of which can have been published before it.
	young bool
	// firstYoung is when the first of those was published that are not old yet.
	firstYoung sql.NullString
}

// publishedQuery reads the rows behind the seq $1, at most $3, and deletes those that were
// published before $2.
func publishedQuery(outbox string) string {
	const cutoff = `(timestamptz 'epoch' + interval '1 microsecond' * $2::bigint::float8)`
	return `WITH near AS (
			SELECT seq, published_at, created_at FROM ` + outbox + ` WHERE seq > $1::bigint ORDER BY seq LIMIT $3::integer
		), old AS (
			SELECT seq FROM ` + outbox + `
			WHERE seq = ANY (ARRAY(SELECT seq FROM near WHERE published_at < ` + cutoff + `)) AND published_at < ` + cutoff + `
			FOR UPDATE SKIP LOCKED
		), gone AS (
			DELETE FROM ` + outbox + ` WHERE seq = ANY (ARRAY(SELECT seq FROM old)) RETURNING seq
		)
		SELECT count(*), coalesce(max(seq), 0), count(*) FILTER (WHERE published_at < ` + cutoff + `), (SELECT count(*) FROM gone),
			coalesce(bool_and(created_at >= ` + cutoff + `), true),
			` + asText(`min(published_at) FILTER (WHERE published_at >= `+cutoff+`)`) + `
		FROM near`
}

// deletePublished walks through the table once, and leaves out what it has seen before and
// cannot be old yet.
func (a *Admin) deletePublished(ctx context.Context, age time.Duration, seen *spans, pace paceFunc) (deleted int64, err error) {
	now, err := a.clock(ctx)
	if err != nil {
		return 0, fmt.Errorf("forwarder: retention: %w", err)
	}
	query, cutoff := publishedQuery(a.schema.Outbox()), microseconds(now.Add(-age))
	seen.forgetUntil(now)
	defer seen.merge(age / 10)
	for from := int64(math.MinInt64); ; {
		from = seen.skip(from)
		var w publishedWindow
		err := pace(ctx, func(ctx context.Context) error {
			return a.writeByIndex(ctx, func(tx *sql.Tx) error {
				return tx.QueryRowContext(ctx, query, from, cutoff, retentionBatch).
					Scan(&w.rows, &w.last, &w.old, &w.deleted, &w.young, &w.firstYoung)
			})
		})
		if err != nil {
			return deleted, fmt.Errorf("forwarder: retention in %s: %w", a.schema.Outbox(), err)
		}
		deleted += w.deleted
		if w.rows > 0 && w.old == w.deleted {
			seen.add(span{from: from, to: w.last, until: w.oldFrom(now, age)})
		}
		if w.rows < retentionBatch || w.young {
			return deleted, nil
		}
		from = w.last
	}
}

// oldFrom is when the first of the rows that are left can be old: one that is not published
// yet, at the earliest, as long after now as the others after they were.
func (w publishedWindow) oldFrom(now time.Time, age time.Duration) time.Time {
	if first := textTime(w.firstYoung); !first.IsZero() && first.Before(now) {
		return first.Add(age)
	}
	return now.Add(age)
}

// clock is the database's.
func (a *Admin) clock(ctx context.Context) (now time.Time, err error) {
	err = a.read(ctx, func(tx *sql.Tx) error {
		var text sql.NullString
		err := tx.QueryRowContext(ctx, `SELECT `+asText(`clock_timestamp()`)).Scan(&text)
		now = textTime(text)
		return err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}

// writeByIndex is write for statements that read a few rows of a table of any size.
func (a *Admin) writeByIndex(ctx context.Context, run func(tx *sql.Tx) error) error {
	return a.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, indexSettings); err != nil {
			return fmt.Errorf("settings: %w", err)
		}
		return run(tx)
	})
}

package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// A row of the flow is held back while one of its unit before it waits, or is a dead letter that
// blocks. That is asked when the rows are locked, in a statement of its own: while a lock was waited
// for, whoever had it may have made a row before wait. Its snapshot sees that.

type heldBackQueries struct {
	// any says whether anything at all waits or blocks. Most of the time nothing does, and
	// no row is looked up.
	any     string
	held    string
	missing string
}

func newHeldBackQueries(s schema.Postgres) heldBackQueries {
	waiting := `SELECT w.unit_hash FROM ` + s.Outbox() + ` AS w WHERE w.next_attempt_at IS NOT NULL ORDER BY w.unit_hash, w.seq LIMIT 1`
	blocking := `SELECT d.unit_hash FROM ` + s.DeadLetters() + ` AS d WHERE d.blocks ORDER BY d.unit_hash, d.seq LIMIT 1`
	return heldBackQueries{
		any: `SELECT EXISTS (SELECT FROM ` + s.Outbox() + ` WHERE next_attempt_at IS NOT NULL)
			OR EXISTS (SELECT FROM ` + s.DeadLetters() + ` WHERE blocks)`,
		held: `SELECT head.seq FROM ` + s.Outbox() + ` AS head
			WHERE head.seq = ANY ($1::bigint[]) AND (
				(` + waiting + `) IS NOT NULL AND ` + isBehindAnotherWaiting(s) + `
				OR (` + blocking + `) IS NOT NULL AND ` + isBlocked(s, `head`) + `)`,
		missing: `SELECT DISTINCT unit_hash FROM ` + s.Outbox() + ` WHERE ` + flowFilter + ` AND seq <> ALL ($7::bigint[])`,
	}
}

// isBehindAnotherWaiting leaves out the waiting rows $2, which the same claim has taken: they are the
// first ones of their units, so that it has taken all before the row if it has the last of them.
func isBehindAnotherWaiting(s schema.Postgres) string {
	return `coalesce((SELECT b.seq <> ALL ($2::bigint[]) FROM ` + s.Outbox() + ` AS b
		WHERE ` + sameUnit(`b`, `head`) + ` AND b.next_attempt_at IS NOT NULL AND b.seq < head.seq
		ORDER BY b.unit_hash DESC, b.seq DESC LIMIT 1), false)`
}

// sameUnit says that two rows belong to one unit. The hash alone is for the index: two units
// may have the same.
func sameUnit(a, b string) string {
	return a + `.unit_hash = ` + b + `.unit_hash AND ` + a + `.destination = ` + b + `.destination AND ` + keyOf(a) + ` = ` + keyOf(b)
}

// keyOf is the effective partition key of a row.
func keyOf(row string) string {
	return `coalesce(nullif(` + row + `.partition_key, ''), ` + row + `.id)`
}

// isBehindWaiting and isBlocked are subqueries that the planner cannot turn into a join: one
// would read all that waits.
func isBehindWaiting(s schema.Postgres, row string) string {
	return `(SELECT true FROM ` + s.Outbox() + ` AS b
		WHERE ` + sameUnit(`b`, row) + ` AND b.next_attempt_at IS NOT NULL AND b.seq < ` + row + `.seq
		LIMIT 1) IS NOT NULL`
}

func isBlocked(s schema.Postgres, row string) string {
	return `(SELECT true FROM ` + s.DeadLetters() + ` AS d
		WHERE ` + sameUnit(`d`, row) + ` AND d.blocks AND d.seq < ` + row + `.seq
		LIMIT 1) IS NOT NULL`
}

// holdBack moves the rows that are to be held back from rows to held.
func (c claimer) holdBack(ctx context.Context, tx *sql.Tx, flowing *flowRows, due dueRows) error {
	if len(flowing.rows) == 0 {
		return nil
	}
	var some bool
	if err := tx.QueryRowContext(ctx, c.flow.heldBack.any).Scan(&some); err != nil {
		return fmt.Errorf("look whether anything waits: %w", err)
	}
	if !some {
		return nil
	}
	seqs := make(pq.Int64Array, len(flowing.rows))
	for i, r := range flowing.rows {
		seqs[i] = r.seq
	}
	var err error
	if flowing.held, err = numbers(ctx, tx, c.flow.heldBack.held, seqs, due.seqs()); err != nil {
		return fmt.Errorf("look for rows behind one that waits: %w", err)
	}
	held := map[int64]bool{}
	for _, seq := range flowing.held {
		held[seq] = true
	}
	flowing.rows = slices.DeleteFunc(flowing.rows, func(r row) bool { return held[r.seq] })
	return nil
}

// leaveBehindMissing leaves out the units of rows that are to be taken and were not, since others
// have them locked.
func (c claimer) leaveBehindMissing(ctx context.Context, tx *sql.Tx, flowing *flowRows, filter []any) error {
	seqs := make(pq.Int64Array, len(flowing.rows))
	for i, r := range flowing.rows {
		seqs[i] = r.seq
	}
	var err error
	flowing.missing, err = numbers(ctx, tx, c.flow.heldBack.missing, append(slices.Clone(filter), seqs)...)
	if err != nil {
		return fmt.Errorf("look for rows that others have locked: %w", err)
	}
	flowing.rows = slices.DeleteFunc(flowing.rows, func(r row) bool { return slices.Contains(flowing.missing, r.unitHash) })
	return nil
}

// numbers reads a column of them.
func numbers(ctx context.Context, tx *sql.Tx, query string, args ...any) (list []int64, err error) {
	err = readAll(ctx, tx, query, func(rows *sql.Rows) error {
		var number int64
		err := rows.Scan(&number)
		list = append(list, number)
		return err //nolint:wrapcheck // the caller wraps it
	}, args...)
	return list, err
}

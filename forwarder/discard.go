package forwarder

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lib/pq"
)

// Discard deletes the dead letters that the filter selects, and returns how many. They are
// gone: their messages are never sent. A unit that none of them blocks any more goes on
// with what waits.
//
// In everything else it is as Replay.
func (a *Admin) Discard(ctx context.Context, f Filter, opts BulkOptions) (discarded int64, err error) {
	discarded, err = a.bulk(ctx, f, opts, a.discardFree, a.discardBlocking)
	if err != nil {
		return discarded, fmt.Errorf("forwarder: discard: %w", err)
	}
	return discarded, nil
}

func (a *Admin) discardFree(ctx context.Context, tx *sql.Tx, letters pq.Int64Array) (int64, error) {
	return a.affect(ctx, tx, `WITH chosen AS (
			SELECT dead_letter_id FROM `+a.schema.DeadLetters()+`
			WHERE dead_letter_id = ANY ($1::bigint[]) AND NOT blocks
			ORDER BY dead_letter_id
			FOR UPDATE
		)
		DELETE FROM `+a.schema.DeadLetters()+` WHERE dead_letter_id IN (SELECT dead_letter_id FROM chosen)`, letters)
}

// discardBlocking holds the lane's lock.
func (a *Admin) discardBlocking(ctx context.Context, tx *sql.Tx, letters pq.Int64Array) (int64, error) {
	locked, err := a.lockBlocking(ctx, tx, letters)
	if err != nil {
		return 0, err
	}
	discarded, err := a.affect(ctx, tx, `DELETE FROM `+a.schema.DeadLetters()+` WHERE dead_letter_id = ANY ($1::bigint[])`, locked.letters)
	if err != nil {
		return 0, err
	}
	return discarded, a.wakeUnits(ctx, tx, locked.units)
}

// wakeUnits makes the first waiting row of each unit due, if it was held back and no dead
// letter blocks the unit any more. What is behind it waits for it, also where it had a time
// of its own.
func (a *Admin) wakeUnits(ctx context.Context, tx *sql.Tx, units pq.Int64Array) error {
	if len(units) == 0 {
		return nil
	}
	outbox := a.schema.Outbox()
	first := `SELECT u.unit_hash, (
			SELECT min(w.seq) FROM ` + outbox + ` AS w WHERE w.unit_hash = u.unit_hash AND w.next_attempt_at IS NOT NULL
		) AS seq
		FROM (SELECT DISTINCT unit_hash::integer FROM unnest($1::bigint[]) AS units (unit_hash)) AS u`
	_, err := tx.ExecContext(ctx, `UPDATE `+outbox+` AS o SET next_attempt_at = clock_timestamp()
		FROM (`+first+`) AS first
		WHERE o.seq = first.seq AND o.next_attempt_at = 'infinity'
			AND NOT EXISTS (SELECT FROM `+a.schema.DeadLetters()+` AS d WHERE d.unit_hash = first.unit_hash AND d.blocks)`, units)
	if err != nil {
		return fmt.Errorf("let units go on: %w", err)
	}
	_, err = tx.ExecContext(ctx, `UPDATE `+outbox+` AS o SET next_attempt_at = 'infinity'
		FROM (`+first+`) AS first
		WHERE o.unit_hash = first.unit_hash AND o.seq > first.seq AND o.next_attempt_at < 'infinity'`, units)
	if err != nil {
		return fmt.Errorf("hold rows behind the first: %w", err)
	}
	return nil
}

package forwarder

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// maxOrphans bounds what one look for orphans changes.
const maxOrphans = 1000

// orphansQuery finds rows, at most $1, that are parked, the first of their units that wait, with
// nothing that would let them go on: an operator has deleted or changed the row that they waited
// for, or they were locked when their turn had come.
func orphansQuery(s schema.Postgres) string {
	return `SELECT first.seq, first.unit_hash FROM (
			SELECT unit_hash, destination, ` + keyOf(`o`) + ` AS partition_key, NULL AS id, min(seq) AS seq FROM ` + s.Outbox() + ` AS o
			WHERE next_attempt_at IS NOT NULL
			GROUP BY unit_hash, destination, ` + keyOf(`o`) + `
			HAVING min(seq) FILTER (WHERE next_attempt_at < 'infinity') IS NULL
				OR min(seq) FILTER (WHERE next_attempt_at < 'infinity') > min(seq)
		) AS first
		WHERE NOT ` + isBlocked(s, `first`) + `
		LIMIT $1::integer`
}

// freeLanesQuery leaves of the rows $1, of the units $2, those whose lanes are free, and holds
// these until the end of the transaction: $3 lock base.
func freeLanesQuery(s schema.Postgres) string {
	return `SELECT first.seq, first.hash FROM ROWS FROM (
			pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::integer[])
		) AS first (seq, hash)
		WHERE pg_try_advisory_xact_lock($3::bigint + (first.hash & (SELECT lanes - 1 FROM ` + s.Settings() + `)))`
}

// adoptQuery makes those of the rows $1, of the units $2, due that are parked still, the first
// of their units that wait, and have no row of the flow before them. The lanes are held by now,
// and it sees what their last holders did.
func adoptQuery(s schema.Postgres) string {
	return `WITH flow AS MATERIALIZED (
			SELECT f.seq, f.unit_hash, f.destination, f.partition_key, f.id FROM ` + s.Outbox() + ` AS f
			WHERE f.published_at IS NULL AND f.next_attempt_at IS NULL AND f.unit_hash = ANY ($2::integer[])
				AND f.seq < (SELECT max(u.seq) FROM pg_catalog.unnest($1::bigint[]) AS u (seq))
		)
		UPDATE ` + s.Outbox() + ` AS o SET next_attempt_at = clock_timestamp()
		FROM (SELECT l.seq FROM ` + s.Outbox() + ` AS l WHERE l.seq = ANY ($1::bigint[]) AND l.next_attempt_at = 'infinity'
			FOR UPDATE SKIP LOCKED) AS parked
		WHERE o.seq = parked.seq
			AND NOT EXISTS (SELECT FROM flow AS b WHERE ` + sameUnit(`b`, `o`) + ` AND b.seq < o.seq)
			AND NOT ` + isBehindWaiting(s, `o`)
}

// orphans are rows that are parked, and their units.
type orphans struct{ seqs, units pq.Int64Array }

// adopt has the units of orphans go on.
func (p *patrol) adopt(ctx context.Context) error {
	_, err := answered(2*p.config.DatabaseTimeout, func() (struct{}, error) { return struct{}{}, p.adoptAtOnce(ctx) })
	return err
}

func (p *patrol) adoptAtOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.DatabaseTimeout)
	defer cancel()
	tx, err := p.begin(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	found, err := readOrphans(ctx, tx, p.orphansQuery, maxOrphans)
	if err == nil && len(found.seqs) > 0 {
		found, err = readOrphans(ctx, tx, p.freeLanesQuery, found.seqs, found.units, p.claimer.lockBase)
	}
	if err != nil || len(found.seqs) == 0 {
		return err
	}
	result, err := tx.ExecContext(ctx, p.adoptQuery, found.seqs, found.units)
	if err != nil {
		return fmt.Errorf("let parked rows without a first go on: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if adopted, err := result.RowsAffected(); err == nil && adopted > 0 {
		p.logger.Info("Rows were parked behind one that is gone, they go on", watermill.LogFields{"units": adopted})
	}
	return nil
}

func readOrphans(ctx context.Context, tx *sql.Tx, query string, args ...any) (found orphans, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return orphans{}, fmt.Errorf("look for parked rows without a first: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	for rows.Next() {
		var seq, unit int64
		if err := rows.Scan(&seq, &unit); err != nil {
			return orphans{}, fmt.Errorf("look for parked rows without a first: %w", err)
		}
		found.seqs, found.units = append(found.seqs, seq), append(found.units, unit)
	}
	if err := rows.Err(); err != nil {
		return orphans{}, fmt.Errorf("look for parked rows without a first: %w", err)
	}
	return found, nil
}

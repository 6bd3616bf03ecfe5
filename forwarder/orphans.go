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

// orphansQuery finds units, at most $1, whose first waiting row is parked, with nothing that
// would let it go on: an operator has deleted or changed the row that it waited for, or it
// was locked when its turn had come. Rows of the flow before it come first.
func orphansQuery(s schema.Postgres) string {
	return `SELECT first.unit_hash FROM (
			SELECT DISTINCT ON (unit_hash) unit_hash, seq, next_attempt_at FROM ` + s.Outbox() + `
			WHERE next_attempt_at IS NOT NULL
			ORDER BY unit_hash, seq
		) AS first
		WHERE first.next_attempt_at = 'infinity' AND NOT ` + isBlocked(s, `first`) + `
		LIMIT $1::integer`
}

// freeLanesQuery leaves of the units $1 those whose lanes are free, and holds these until the
// end of the transaction: $2 lock base.
func freeLanesQuery(s schema.Postgres) string {
	return `SELECT unit.hash FROM pg_catalog.unnest($1::integer[]) AS unit (hash)
		WHERE pg_try_advisory_xact_lock($2::bigint + (unit.hash & (SELECT lanes - 1 FROM ` + s.Settings() + `)))`
}

// soleQuery leaves of the units $1 those with no row in the flow before one that waits.
func soleQuery(s schema.Postgres) string {
	return `SELECT unit.hash FROM pg_catalog.unnest($1::integer[]) AS unit (hash)
		WHERE unit.hash NOT IN (SELECT f.unit_hash FROM ` + s.Outbox() + ` AS f
			WHERE f.published_at IS NULL AND f.next_attempt_at IS NULL AND f.unit_hash = ANY ($1::integer[])
				AND f.seq < (SELECT max(w.seq) FROM ` + s.Outbox() + ` AS w
					WHERE w.next_attempt_at IS NOT NULL AND w.unit_hash = ANY ($1::integer[])))`
}

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
	units, err := unitsOf(ctx, tx, p.orphansQuery, maxOrphans)
	if err == nil && len(units) > 0 {
		units, err = unitsOf(ctx, tx, p.freeLanesQuery, pq.Int64Array(units), p.claimer.lockBase)
	}
	if err == nil && len(units) > 0 {
		units, err = unitsOf(ctx, tx, p.soleQuery, pq.Int64Array(units))
	}
	if err != nil || len(units) == 0 {
		return err
	}
	if err := p.settler.promote(ctx, tx, units); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	p.logger.Info("Rows were parked behind one that is gone, they go on", watermill.LogFields{"units": len(units)})
	return nil
}

func unitsOf(ctx context.Context, tx *sql.Tx, query string, args ...any) (units []int64, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("look for parked rows without a first: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	for rows.Next() {
		var unit int64
		if err := rows.Scan(&unit); err != nil {
			return nil, fmt.Errorf("look for parked rows without a first: %w", err)
		}
		units = append(units, unit)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("look for parked rows without a first: %w", err)
	}
	return units, nil
}

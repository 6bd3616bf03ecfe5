package forwarder

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// promoteQuery makes the first row due that waits in each of the units $1, if it is parked
// and not locked by others. The patrol finds those that this one leaves.
func promoteQuery(s schema.Postgres) string {
	return `UPDATE ` + s.Outbox() + ` AS o SET next_attempt_at = clock_timestamp()
		FROM (
			SELECT p.seq FROM (SELECT DISTINCT hash FROM pg_catalog.unnest($1::integer[]) AS u (hash)) AS unit, LATERAL (
				SELECT b.seq, b.next_attempt_at FROM ` + s.Outbox() + ` AS b
				WHERE b.unit_hash = unit.hash AND b.next_attempt_at IS NOT NULL
				ORDER BY b.unit_hash, b.seq
				LIMIT 1
				FOR UPDATE SKIP LOCKED
			) AS p
			WHERE p.next_attempt_at = 'infinity'
		) AS next
		WHERE o.seq = next.seq`
}

// promote lets units go on whose first waiting row is settled or a dead letter.
func (s settler) promote(ctx context.Context, tx *sql.Tx, units []int64) error {
	if len(units) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, s.promoteQuery, pq.Int64Array(units)); err != nil {
		return fmt.Errorf("let waiting units go on: %w", err)
	}
	return nil
}

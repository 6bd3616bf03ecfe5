package forwarder

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// promoteQuery makes the first row due that waits in each of the units ($1 hashes, $2
// destinations, $3 partition keys), if it is parked and not locked by others: the patrol finds
// those that this one leaves.
func promoteQuery(s schema.Postgres) string {
	return `UPDATE ` + s.Outbox() + ` AS o SET next_attempt_at = clock_timestamp()
		FROM (
			SELECT p.seq FROM ROWS FROM (
				pg_catalog.unnest($1::integer[]), pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[])
			) AS unit (hash, destination, key), LATERAL (
				SELECT b.seq FROM ` + s.Outbox() + ` AS b
				WHERE b.unit_hash = unit.hash AND b.destination = unit.destination AND ` + keyOf(`b`) + ` = unit.key
					AND b.next_attempt_at IS NOT NULL
				ORDER BY b.unit_hash, b.seq
				LIMIT 1
			) AS first, LATERAL (
				SELECT b.seq FROM ` + s.Outbox() + ` AS b
				WHERE b.seq = first.seq AND b.next_attempt_at = 'infinity'
				FOR UPDATE SKIP LOCKED
			) AS p
		) AS next
		WHERE o.seq = next.seq`
}

// units are those of rows that are gone.
type units struct {
	hashes             pq.Int64Array
	destinations, keys pq.StringArray
	known              map[Unit]bool
}

func (u *units) add(r row) {
	if unit := r.outgoing.Unit(); !u.known[unit] {
		if u.known == nil {
			u.known = map[Unit]bool{}
		}
		u.known[unit] = true
		u.hashes = append(u.hashes, r.unitHash)
		u.destinations = append(u.destinations, unit.Destination)
		u.keys = append(u.keys, unit.PartitionKey)
	}
}

func (u *units) addAll(others units) {
	for i, hash := range others.hashes {
		u.add(row{unitHash: hash, outgoing: Outgoing{Destination: others.destinations[i], PartitionKey: others.keys[i]}})
	}
}

// promote lets units go on whose first waiting row is settled or a dead letter.
func (s settler) promote(ctx context.Context, tx *sql.Tx, freed units) error {
	if len(freed.hashes) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, s.promoteQuery, freed.hashes, freed.destinations, freed.keys); err != nil {
		return fmt.Errorf("let waiting units go on: %w", err)
	}
	return nil
}

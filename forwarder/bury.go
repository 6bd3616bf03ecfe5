package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// failure is a row whose message was not confirmed, and what is to be written about it.
type failure struct {
	row row
	// spent is 1 where the message itself was refused, 0 where the broker may be at
	// fault.
	spent int64
	err   error
}

type failureColumns struct {
	seqs, spent   pq.Int64Array
	texts, groups pq.StringArray
}

func columnsOf(failures []failure) failureColumns {
	var c failureColumns
	for _, f := range failures {
		text := storable(f.err.Error())
		c.seqs = append(c.seqs, f.row.seq)
		c.spent = append(c.spent, f.spent)
		c.texts = append(c.texts, text)
		c.groups = append(c.groups, errorGroup(text, f.row.id, f.row.outgoing.PartitionKey))
	}
	return c
}

// buryQuery moves rows to the dead letters: $1 their seqs, $2 what each has spent, $3 the
// errors, $4 their groups, $5 whether they block their units.
func buryQuery(s schema.Postgres) string {
	const kept = `seq, id, destination, partition_key, payload, payload_bytes, metadata, created_at`
	return `WITH dead AS (
			DELETE FROM ` + s.Outbox() + ` AS o
			USING ROWS FROM (
				pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::integer[]),
				pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::text[])
			) AS f (seq, spent, error, error_group)
			WHERE o.seq = f.seq
			RETURNING o.seq, o.id, o.destination, o.partition_key, o.payload, o.payload_bytes, o.metadata, o.created_at,
				least(o.attempts, 2147483646) + f.spent AS attempts, f.error, f.error_group
		)
		INSERT INTO ` + s.DeadLetters() + ` (` + kept + `, attempts, error, error_group, blocks, dead_at)
		SELECT ` + kept + `, attempts, left(error, 10000), error_group, $5::boolean, clock_timestamp() FROM dead ORDER BY seq`
}

// buryOrDelay moves what is dead to the dead letters. Where that fails, the rows are tried
// again later: what the broker has confirmed must be settled all the same.
func (s settler) buryOrDelay(ctx context.Context, tx *sql.Tx, v *verdict) error {
	if len(v.dead) == 0 {
		return nil
	}
	const savepoint = `watermill_outbox_bury`
	if _, err := tx.ExecContext(ctx, `SAVEPOINT `+savepoint); err != nil {
		return fmt.Errorf("bury: %w", err)
	}
	err := s.bury(ctx, tx, v.dead)
	if err == nil {
		if !s.blocks {
			v.free(v.dead)
		}
		return nil
	}
	if _, rollbackErr := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT `+savepoint); rollbackErr != nil {
		return errors.Join(err, rollbackErr)
	}
	for _, f := range v.dead {
		f.err = fmt.Errorf("%w; not moved to the dead letters: %w", f.err, err)
		v.delayed = append(v.delayed, f)
	}
	v.dead = nil
	return nil
}

func (s settler) bury(ctx context.Context, tx *sql.Tx, dead []failure) error {
	c := columnsOf(dead)
	result, err := tx.ExecContext(ctx, s.buryQuery, c.seqs, c.spent, c.texts, c.groups, s.blocks)
	if err != nil {
		return fmt.Errorf("bury: %w", err)
	}
	return requireAffected(result, len(dead))
}

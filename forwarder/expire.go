package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-outbox/outbox/schema"
)

var errExpired = errors.New("forwarder: destination was unavailable for too long")

// expireQuery locks rows of the destination $1 behind the seq $2, at most $3, in the lanes $5
// of $4.
func expireQuery(s schema.Postgres) string {
	return `SELECT ` + rowColumnsOf(`NULL::text, NULL::bytea`) + ` FROM ` + s.Outbox() + `
		WHERE published_at IS NULL AND destination = $1::text AND seq > $2::bigint
			AND (unit_hash & ($4::integer - 1)) = ANY ($5::integer[])
		ORDER BY seq
		LIMIT $3::integer
		FOR UPDATE SKIP LOCKED`
}

// expire moves all rows of a destination to the dead letters. Those that others hold are left
// for the next time.
func (p *prober) expire(ctx context.Context, destination string, away time.Duration, reason error) error {
	reason = fmt.Errorf("%w, for %s: %w", errExpired, away.Round(time.Second), reason)
	for from := int64(0); ctx.Err() == nil; {
		last, err := answered(6*p.config.DatabaseTimeout, func() (int64, error) {
			return p.expireBatch(ctx, destination, from, reason)
		})
		if err != nil || last == 0 {
			return err
		}
		from = last
	}
	return nil
}

func (p *prober) expireBatch(ctx context.Context, destination string, from int64, reason error) (last int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*p.config.DatabaseTimeout)
	defer cancel()
	tx, err := p.begin(ctx, 1)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	all := p.claimer
	all.workers = 1
	in, err := all.occupy(ctx, tx, request{lane: anyLane})
	if err != nil {
		return 0, err
	}
	v := verdict{}
	v.dead, err = failuresOf(ctx, tx, reason, p.expireQuery, destination, from, p.config.BatchSize, in.total, in.lanes)
	if err != nil || len(v.dead) == 0 {
		return 0, err
	}
	last = v.dead[len(v.dead)-1].row.seq
	if err := p.settler.write(ctx, tx, &v); err != nil {
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	p.tell(&v)
	return last, nil
}

func failuresOf(ctx context.Context, tx *sql.Tx, reason error, query string, args ...any) (failures []failure, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("claim what has expired: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	for rows.Next() {
		var line rowScan
		if err := rows.Scan(line.targets()...); err != nil {
			return nil, fmt.Errorf("claim what has expired: %w", err)
		}
		failures = append(failures, failure{row: line.row(), err: reason})
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("claim what has expired: %w", err)
	}
	return failures, nil
}

package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"

	"github.com/watermill-outbox/outbox/schema"
)

// maxLanes is the largest number of lanes that the settings table allows.
const maxLanes = 4096

// onlyLane is the lane that everything is in where there is no order.
const onlyLane = 0

// anyLane has a claim begin with a random one.
const anyLane = -1

// lanesQuery locks free lanes until the end of the transaction, starting at a random
// one: $1 lock base, $2 where to start, $3 among how many workers to share.
func lanesQuery(s schema.Postgres) string {
	return `SELECT c.lane, c.lanes FROM (
			SELECT s.lanes, (g.n + $2::integer) & (s.lanes - 1) AS lane
			FROM ` + s.Settings() + ` AS s, generate_series(0, s.lanes - 1) AS g (n)
			OFFSET 0
		) AS c
		WHERE pg_try_advisory_xact_lock($1::bigint + c.lane)
		LIMIT (SELECT (lanes + $3::integer - 1) / $3::integer FROM ` + s.Settings() + `)`
}

func (c claimer) claimLanes(ctx context.Context, tx *sql.Tx) (lanes []int64, total int, err error) {
	return c.claimLanesFrom(ctx, tx, anyLane)
}

func (c claimer) claimLanesFrom(ctx context.Context, tx *sql.Tx, start int) (lanes []int64, total int, err error) {
	if start == anyLane {
		start = rand.IntN(maxLanes)
	}
	rows, err := tx.QueryContext(ctx, c.lanesQuery, c.lockBase, start, c.workers)
	if err != nil {
		return nil, 0, fmt.Errorf("claim lanes: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	for rows.Next() {
		var lane int64
		if err := rows.Scan(&lane, &total); err != nil {
			return nil, 0, fmt.Errorf("claim lanes: %w", err)
		}
		lanes = append(lanes, lane)
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("claim lanes: %w", err)
	}
	if len(lanes) == 0 {
		return nil, 0, c.requireSettings(ctx, tx)
	}
	return lanes, total, nil
}

// requireSettings tells lanes that others have from a settings table that was emptied:
// without a word, rows would wait for ever.
func (c claimer) requireSettings(ctx context.Context, tx *sql.Tx) error {
	var total int
	err := tx.QueryRowContext(ctx, c.totalQuery).Scan(&total)
	if isNoRows(err) {
		return fmt.Errorf("claim lanes: %w: %s is empty", schema.ErrNotMigrated, c.config.Schema.Settings())
	}
	if err != nil {
		return fmt.Errorf("count lanes: %w", err)
	}
	return nil
}

package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/lib/pq"
)

// BulkOptions are those of Admin.Replay and Admin.Discard.
type BulkOptions struct {
	// DryRun counts what would be done, and does nothing.
	DryRun bool
}

// bulkPage is the most dead letters that one transaction moves or deletes.
const bulkPage = 1000

// bulkAction does something to dead letters in a transaction, and returns to how many.
type bulkAction func(ctx context.Context, tx *sql.Tx, letters pq.Int64Array) (int64, error)

// bulk goes through the dead letters that a filter selects. Those that block their units
// are another matter than the others: what becomes of a unit is decided under the lock of
// its lane, which claims hold as well, so that none of them is about to act on what it saw
// before. It takes one lane at a time: whoever waits for a lane holds up no other.
func (a *Admin) bulk(ctx context.Context, f Filter, opts BulkOptions, free, blocking bulkAction) (done int64, err error) {
	if err := f.validateBulk(); err != nil {
		return 0, err
	}
	if opts.DryRun {
		return a.count(ctx, f)
	}
	next := bulkPages{after: math.MinInt64}
	for {
		page, err := a.nextBulkPage(ctx, f, &next)
		if err != nil || len(page) == 0 {
			return done, err
		}
		for _, part := range bulkParts(page) {
			var n int64
			err := a.write(ctx, func(tx *sql.Tx) (err error) {
				if !part.blocking {
					n, err = free(ctx, tx, part.letters)
					return err
				}
				if err := a.lockLane(ctx, tx, part.lane); err != nil {
					return err
				}
				n, err = blocking(ctx, tx, part.letters)
				return err
			})
			if err != nil {
				return done, err
			}
			done += n
		}
	}
}

func (a *Admin) count(ctx context.Context, f Filter) (count int64, err error) {
	err = a.read(ctx, func(tx *sql.Tx) error {
		query := `SELECT count(*) FROM ` + a.schema.DeadLetters() + ` WHERE ` + filterCondition
		return tx.QueryRowContext(ctx, query, f.filterArgs()...).Scan(&count)
	})
	return count, err
}

// lockLane waits for the forwarder that works on it.
func (a *Admin) lockLane(ctx context.Context, tx *sql.Tx, lane int64) error {
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1::bigint)`, a.schema.LockBase()+lane); err != nil {
		return fmt.Errorf("wait for the forwarder at work on lane %d: %w", lane, err)
	}
	return nil
}

// bulkPages says where the next page begins.
type bulkPages struct {
	after, last int64
	begun       bool
}

// bulkLetter is what is known of a dead letter before it is locked.
type bulkLetter struct {
	id       int64
	blocking bool
	lane     int64
}

func (a *Admin) nextBulkPage(ctx context.Context, f Filter, next *bulkPages) (page []bulkLetter, err error) {
	query := `SELECT d.dead_letter_id, d.blocks, d.unit_hash & (s.lanes - 1)
		FROM (
			SELECT dead_letter_id, blocks, unit_hash FROM ` + a.schema.DeadLetters() + `
			WHERE ` + filterCondition + ` AND dead_letter_id > $7::bigint AND dead_letter_id <= $8::bigint
			ORDER BY dead_letter_id LIMIT $9::integer
		) AS d CROSS JOIN ` + a.schema.Settings() + ` AS s
		ORDER BY d.dead_letter_id`
	err = a.read(ctx, func(tx *sql.Tx) error {
		if !next.begun {
			if next.last, err = a.lastDeadLetter(ctx, tx); err != nil {
				return err
			}
		}
		return readAll(ctx, tx, query, func(rows *sql.Rows) error {
			var letter bulkLetter
			err := rows.Scan(&letter.id, &letter.blocking, &letter.lane)
			page = append(page, letter)
			return err //nolint:wrapcheck // Replay and Discard wrap it
		}, f.filterArgs(next.after, next.last, bulkPage)...)
	})
	next.begun = true
	if len(page) > 0 {
		next.after = page[len(page)-1].id
	}
	return page, err
}

// bulkPart are the letters of one transaction.
type bulkPart struct {
	letters  pq.Int64Array
	blocking bool
	lane     int64
}

func bulkParts(page []bulkLetter) []bulkPart {
	var free bulkPart
	lanes := map[int64]bulkPart{}
	for _, letter := range page {
		if !letter.blocking {
			free.letters = append(free.letters, letter.id)
			continue
		}
		lane := lanes[letter.lane]
		lane.letters, lane.blocking, lane.lane = append(lane.letters, letter.id), true, letter.lane
		lanes[letter.lane] = lane
	}
	var parts []bulkPart
	if len(free.letters) > 0 {
		parts = append(parts, free)
	}
	for _, lane := range slices.Sorted(maps.Keys(lanes)) {
		parts = append(parts, lanes[lane])
	}
	return parts
}

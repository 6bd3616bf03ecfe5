package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// Of the rows of a unit that wait, the first has a time, unless a dead letter blocks the unit,
// and those behind it are parked. Workers keep it so. But an operator may delete or change the
// first, or let go of a dead letter, or have all rows tried at once; somebody may have the next
// row locked when its turn comes; and a forwarder with another Ordering may have run before. A
// row that is parked with nothing to let it go on would stand still for ever, and those that
// have a time and may not be sent would be read again at each claim.

// stop is where a tour of the rows that wait has come to, in the order of their index. The zero
// value is the beginning.
type stop struct{ unit, seq int64 }

// unitRows are rows, and the hashes of their units.
type unitRows struct{ seqs, units pq.Int64Array }

func (r *unitRows) add(seq, unit int64) {
	r.seqs, r.units = append(r.seqs, seq), append(r.units, unit)
}

// misplaced are rows that are parked and should have a time, and rows that have one and should
// be parked.
type misplaced struct{ parked, timed unitRows }

// misplacedQuery reads, behind the unit $1 and the seq $2, $3 rows that wait, and returns the
// misplaced ones of them. Beside them it returns, in one row at least, how many rows it has
// read, and the last.
func misplacedQuery(cfg Config) string {
	goesOn := `CASE WHEN place = 1 THEN NOT ` + isBehindWaiting(cfg.Schema, `placed`) +
		` AND NOT ` + isBlocked(cfg.Schema, `placed`) + ` ELSE false END`
	if cfg.Ordering == None { // no row waits for another
		goesOn = `true`
	}
	return `WITH read AS MATERIALIZED (
			SELECT unit_hash, seq, destination, partition_key, id, next_attempt_at = 'infinity' AS parked
			FROM ` + cfg.Schema.Outbox() + `
			WHERE next_attempt_at IS NOT NULL AND (unit_hash, seq) > ($1::integer, $2::bigint)
			ORDER BY unit_hash, seq
			LIMIT $3::integer
		), placed AS (
			SELECT unit_hash, seq, destination, partition_key, id, parked,
				row_number() OVER (PARTITION BY unit_hash, destination, ` + keyOf(`read`) + ` ORDER BY seq) AS place FROM read
		)
		SELECT (SELECT count(*) FROM read), last.unit_hash, last.seq, wrong.parked, wrong.unit_hash, wrong.seq
		FROM (SELECT unit_hash, seq FROM read ORDER BY unit_hash DESC, seq DESC LIMIT 1) AS last
		LEFT JOIN (SELECT parked, unit_hash, seq FROM placed WHERE parked = ` + goesOn + `) AS wrong ON true`
}

// behindFlowQuery returns those of the rows $1, of the units $2, that have a row of the flow
// before them, with a seq above $3 and up to $4.
func behindFlowQuery(s schema.Postgres) string {
	return `WITH flow AS MATERIALIZED (
			SELECT f.seq, f.unit_hash, f.destination, f.partition_key, f.id FROM ` + s.Outbox() + ` AS f
			JOIN (SELECT DISTINCT hash FROM pg_catalog.unnest($2::integer[]) AS u (hash)) AS units ON units.hash = f.unit_hash
			WHERE f.published_at IS NULL AND f.next_attempt_at IS NULL AND f.seq > $3::bigint AND f.seq <= $4::bigint
		)
		SELECT o.unit_hash, o.seq FROM ` + s.Outbox() + ` AS o
		WHERE o.seq = ANY ($1::bigint[]) AND EXISTS (SELECT FROM flow AS b WHERE ` + sameUnit(`b`, `o`) + ` AND b.seq < o.seq)`
}

// freeLanesQuery leaves of the rows $1, of the units $2, those whose lanes are free, and holds
// these until the end of the transaction: $3 lock base.
func freeLanesQuery(s schema.Postgres) string {
	return `SELECT wrong.hash, wrong.seq FROM ROWS FROM (
			pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::integer[])
		) AS wrong (seq, hash)
		WHERE pg_try_advisory_xact_lock($3::bigint + (wrong.hash & (SELECT lanes - 1 FROM ` + s.Settings() + `)))`
}

// laneQuery waits for the lane of the unit $2: $1 lock base.
func laneQuery(s schema.Postgres) string {
	return `SELECT pg_advisory_xact_lock($1::bigint + ($2::integer & (SELECT lanes - 1 FROM ` + s.Settings() + `)))`
}

// adoptQuery makes those of the rows $1 due that are parked still, and may be sent now. The
// lanes are held by now, and it sees what their last holders did.
func adoptQuery(cfg Config) string {
	query := `UPDATE ` + cfg.Schema.Outbox() + ` AS o SET next_attempt_at = clock_timestamp()
		FROM (SELECT l.seq FROM ` + cfg.Schema.Outbox() + ` AS l WHERE l.seq = ANY ($1::bigint[]) AND l.next_attempt_at = 'infinity'
			FOR UPDATE SKIP LOCKED) AS parked
		WHERE o.seq = parked.seq`
	if cfg.Ordering == None {
		return query
	}
	return query + ` AND NOT ` + isBehindWaiting(cfg.Schema, `o`) + ` AND NOT ` + isBlocked(cfg.Schema, `o`)
}

// holdQuery parks those of the rows $1 that have a time still, and wait for another.
func holdQuery(s schema.Postgres) string {
	return `UPDATE ` + s.Outbox() + ` AS o SET next_attempt_at = 'infinity'
		FROM (SELECT l.seq FROM ` + s.Outbox() + ` AS l WHERE l.seq = ANY ($1::bigint[]) AND l.next_attempt_at < 'infinity'
			FOR UPDATE SKIP LOCKED) AS timed
		WHERE o.seq = timed.seq AND (` + isBehindWaiting(s, `o`) + ` OR ` + isBlocked(s, `o`) + `)`
}

// tourTime bounds a part of a tour, so that the patrol's other work is done in time.
const tourTime = patrolInterval / patrolShare

// tour puts right what is misplaced, one window after another, for as long as it may take. The
// next one goes on from there.
func (p *patrol) tour(ctx context.Context) error {
	for began := time.Now(); ctx.Err() == nil; {
		from := p.stop
		came, err := answered(4*p.config.DatabaseTimeout, func() (stop, error) { return p.visit(ctx, from) })
		if !errors.Is(err, errUnanswered) {
			p.stop = came
		}
		if err != nil {
			return fmt.Errorf("look for waiting rows that nothing lets go on: %w", err)
		}
		if came == (stop{}) || time.Since(began) > tourTime {
			return nil
		}
	}
	return nil
}

// visit returns where the next window begins. That may be known also where it fails: what is in
// the way of one is not to keep others from having their turn.
func (p *patrol) visit(ctx context.Context, from stop) (next stop, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*p.config.DatabaseTimeout)
	defer cancel()
	var wrong misplaced
	err = p.inTx(ctx, func(tx *sql.Tx) (err error) {
		if wrong, next, err = p.findMisplaced(ctx, tx, from); err != nil {
			next = from
			return err
		}
		if p.config.Ordering == PerKey {
			err = p.leaveBehindFlow(ctx, tx, &wrong.parked)
		}
		return err
	})
	if err != nil {
		return next, err
	}
	return next, p.putRight(ctx, wrong)
}

func (p *patrol) inTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := p.begin(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (p *patrol) findMisplaced(ctx context.Context, tx *sql.Tx, from stop) (wrong misplaced, next stop, err error) {
	if from == (stop{}) {
		from.unit = math.MinInt32
	}
	err = readAll(ctx, tx, p.misplacedQuery, func(rows *sql.Rows) error {
		var (
			read      int
			parked    sql.NullBool
			unit, seq sql.Null[int64]
		)
		if err := rows.Scan(&read, &next.unit, &next.seq, &parked, &unit, &seq); err != nil {
			return err //nolint:wrapcheck // tour wraps it
		}
		if read < p.window {
			next = stop{} // there are no more
		}
		switch {
		case !parked.Valid:
		case parked.Bool:
			wrong.parked.add(seq.V, unit.V)
		default:
			wrong.timed.add(seq.V, unit.V)
		}
		return nil
	}, from.unit, from.seq, p.window)
	return wrong, next, err
}

// leaveBehindFlow leaves out rows that have one of the flow before them. There may be millions
// in the flow, and it reads a window of seqs at a time.
func (p *patrol) leaveBehindFlow(ctx context.Context, tx *sql.Tx, parked *unitRows) error {
	for from := int64(0); len(parked.seqs) > 0; {
		var first int64
		if err := tx.QueryRowContext(ctx, p.beyondQuery, from).Scan(&first); err != nil {
			return err //nolint:wrapcheck // tour wraps it
		}
		if first == 0 || first > slices.Max(parked.seqs) {
			return nil
		}
		from = first - 1 + window
		behind, err := readUnitRows(ctx, tx, p.behindFlowQuery, parked.seqs, parked.units, first-1, from)
		if err != nil {
			return err
		}
		parked.remove(behind)
	}
	return nil
}

func (r *unitRows) remove(others unitRows) {
	var left unitRows
	gone := map[int64]bool{}
	for _, seq := range others.seqs {
		gone[seq] = true
	}
	for i, seq := range r.seqs {
		if !gone[seq] {
			left.add(seq, r.units[i])
		}
	}
	*r = left
}

func readUnitRows(ctx context.Context, tx *sql.Tx, query string, args ...any) (found unitRows, err error) {
	err = readAll(ctx, tx, query, func(rows *sql.Rows) error {
		var unit, seq int64
		err := rows.Scan(&unit, &seq)
		found.add(seq, unit)
		return err //nolint:wrapcheck // tour wraps it
	}, args...)
	return found, err
}

// putRight moves the rows whose lanes are free, and then waits for those of parked rows that were
// not: under load a lane is hardly ever found free, and nobody has it for long. What it does not
// get is for the next tour.
func (p *patrol) putRight(ctx context.Context, wrong misplaced) error {
	if len(wrong.parked.seqs)+len(wrong.timed.seqs) == 0 {
		return nil
	}
	if p.config.Ordering == None {
		return p.inTx(ctx, func(tx *sql.Tx) error { return p.move(ctx, tx, wrong) })
	}
	left, err := p.moveInLanes(ctx, wrong, false)
	for began := time.Now(); err == nil && len(left.seqs) > 0 && time.Since(began) < p.config.DatabaseTimeout; {
		left, err = p.moveInLanes(ctx, misplaced{parked: left}, true)
		if hasSQLState(err, lockNotAvailable) {
			err = nil
		}
	}
	return err
}

// moveInLanes moves the rows whose lanes are free, or also those of one lane, of which it waits
// for the end of a batch. It holds no other meanwhile. It returns which parked rows are left.
func (p *patrol) moveInLanes(ctx context.Context, wrong misplaced, waits bool) (left unitRows, err error) {
	left = wrong.parked
	err = p.inTx(ctx, func(tx *sql.Tx) error {
		if waits {
			unit := left.units[rand.IntN(len(left.units))]
			if _, err := tx.ExecContext(ctx, p.laneQuery, p.claimer.lockBase, unit); err != nil {
				return fmt.Errorf("wait for a lane: %w", err)
			}
		}
		for _, some := range []*unitRows{&wrong.parked, &wrong.timed} {
			free, err := readUnitRows(ctx, tx, p.freeLanesQuery, some.seqs, some.units, p.claimer.lockBase)
			if err != nil {
				return err
			}
			*some = free
		}
		return p.move(ctx, tx, wrong)
	})
	if err == nil {
		left.remove(wrong.parked)
	}
	return left, err
}

func (p *patrol) move(ctx context.Context, tx *sql.Tx, rows misplaced) error {
	adopted, err := tx.ExecContext(ctx, p.adoptQuery, rows.parked.seqs)
	if err != nil {
		return fmt.Errorf("let parked rows go on: %w", err)
	}
	if _, err := tx.ExecContext(ctx, p.holdQuery, rows.timed.seqs); err != nil {
		return fmt.Errorf("park rows that wait for others: %w", err)
	}
	if n, err := adopted.RowsAffected(); err == nil && n > 0 {
		p.logger.Info("Rows were parked with nothing to let them go on, they go on", watermill.LogFields{"rows": n})
	}
	return nil
}

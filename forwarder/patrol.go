package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

const (
	// patrolInterval bounds how long a row waits that is below the marks after all: one
	// that an operator changed, or that a replica gave back when it died (Ordering None).
	patrolInterval = 10 * time.Second
	// patrolShare keeps what patrols cost below a twentieth of the time, however long one
	// takes.
	patrolShare = 20
	// waitingWindow is how many rows that wait a statement of the patrol reads.
	waitingWindow = 5000
)

// patrol looks from time to time, beside the workers, for what nobody else would find: rows
// below the marks, waiting rows that nothing lets go on, absences that nobody tries any more.
type patrol struct {
	*worker

	query           string
	beyondQuery     string
	misplacedQuery  string
	behindFlowQuery string
	freeLanesQuery  string
	laneQuery       string
	adoptQuery      string
	holdQuery       string
	staleQuery      string

	// window is how many rows that wait are read at a time, and stop what was read last.
	window int
	stop   stop
}

func newPatrol(w *worker) *patrol {
	return &patrol{
		worker:          w,
		query:           patrolQuery(w.config.Schema),
		beyondQuery:     beyondQuery(w.config.Schema),
		misplacedQuery:  misplacedQuery(w.config),
		behindFlowQuery: behindFlowQuery(w.config.Schema),
		freeLanesQuery:  freeLanesQuery(w.config.Schema),
		laneQuery:       laneQuery(w.config.Schema),
		adoptQuery:      adoptQuery(w.config),
		holdQuery:       holdQuery(w.config.Schema),
		staleQuery:      staleQuery(w.config),
		window:          waitingWindow,
	}
}

// patrolQuery finds the lowest row of each lane: $1 is the highest mark, $2 what is left
// out, $3 how many lanes there are, $4 the seq to start behind.
func patrolQuery(s schema.Postgres) string {
	return `SELECT unit_hash & ($3::integer - 1), min(seq) FROM ` + s.Outbox() + `
		WHERE published_at IS NULL AND next_attempt_at IS NULL AND seq <= $1::bigint AND destination <> ALL ($2::text[])
			AND seq > $4::bigint
		GROUP BY 1`
}

// beyondQuery finds the first seq behind $1.
func beyondQuery(s schema.Postgres) string {
	return `SELECT coalesce((SELECT seq FROM ` + s.Outbox() + ` WHERE seq > $1::bigint ORDER BY seq LIMIT 1), 0)`
}

func (p *patrol) run(ctx context.Context) {
	for wait := patrolInterval; ctx.Err() == nil; {
		sleep(ctx, wait, nil)
		began := time.Now()
		if err := errors.Join(p.look(ctx), p.tour(ctx), p.dropStale(ctx)); err != nil && ctx.Err() == nil {
			p.database.note(databaseTrouble(err), schema.Explain(err), wait, began)
		}
		wait = max(patrolInterval, patrolShare*time.Since(began))
	}
}

// look lowers the marks of lanes with rows that they have passed.
func (p *patrol) look(ctx context.Context) error {
	for from := int64(0); ; {
		next, err := answered(4*p.config.DatabaseTimeout, func() (int64, error) { return p.lookBehind(ctx, from) })
		if err != nil {
			return fmt.Errorf("look below the marks: %w", err)
		}
		if next == 0 {
			return nil
		}
		from = next - 1
	}
}

// lookBehind looks at the seqs of one window, and returns the first seq behind it.
func (p *patrol) lookBehind(ctx context.Context, from int64) (next int64, err error) {
	marks := p.claimer.marks
	highest, total, away := marks.highest()
	if highest <= from {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*p.config.DatabaseTimeout)
	defer cancel()
	tx, err := p.begin(ctx, 1)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	until := min(highest, from+window)
	passed, err := p.passed(ctx, tx, until, append(pq.StringArray{}, away...), total, from)
	if err != nil {
		return 0, err
	}
	for lane, seq := range passed {
		if marks.isBelow(lane, seq) {
			marks.giveBack(lane, seq)
			marks.doubtHorizon()
		}
	}
	if until < highest {
		err = tx.QueryRowContext(ctx, p.beyondQuery, until).Scan(&next)
	}
	return next, err //nolint:wrapcheck // look wraps it
}

func (p *patrol) passed(ctx context.Context, tx *sql.Tx, args ...any) (map[int64]int64, error) {
	rows, err := tx.QueryContext(ctx, p.query, args...)
	if err != nil {
		return nil, err //nolint:wrapcheck // look wraps it
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	passed := map[int64]int64{}
	for rows.Next() {
		var lane, seq int64
		if err := rows.Scan(&lane, &seq); err != nil {
			return nil, err //nolint:wrapcheck // look wraps it
		}
		passed[lane] = seq
	}
	return passed, rows.Err() //nolint:wrapcheck // look wraps it
}

// highest is the highest mark, and what else a patrol asks with.
func (m *marks) highest() (mark int64, total int, away []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.lanes) == 0 {
		return 0, 0, nil
	}
	return slices.Max(m.lanes), len(m.lanes), m.away
}

// doubtHorizon has it found anew: seqs may have been set back, by hand, or rows brought in
// with higher ones than the sequence has. Everything new would then be below it, and wait
// for a patrol.
func (m *marks) doubtHorizon() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.horizon = horizon{}
	m.epoch++
}

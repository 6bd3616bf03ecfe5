package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// prober tries what is away, so that workers have no part in it: a broker that does not
// answer costs them neither time nor lanes.
type prober struct {
	*worker

	headQuery   string
	lockQuery   string
	expireQuery string

	mu sync.Mutex
	// busy are brokers of which something is being tried: one row at a time.
	busy map[string]bool
}

func newProber(w *worker) *prober {
	w.probing = true
	return &prober{
		worker:      w,
		headQuery:   headQuery(w.config.Schema),
		lockQuery:   lockQuery(w.config.Schema),
		expireQuery: expireQuery(w.config.Schema),
		busy:        map[string]bool{},
	}
}

// due is true for a row that may be tried now.
const due = `(next_attempt_at IS NULL OR next_attempt_at <= statement_timestamp())`

// headQuery finds the first row for the destinations $1 that may be tried now, leaving out
// units whose hashes are in $2. It is the first of its unit too. It reads from the
// beginning: the marks have passed rows of what is away.
func headQuery(s schema.Postgres) string {
	return `SELECT seq, unit_hash FROM ` + s.Outbox() + ` AS o
		WHERE published_at IS NULL AND destination = ANY ($1::text[]) AND unit_hash <> ALL ($2::integer[])
			AND ` + due + ` AND NOT ` + isBehindWaiting(s, `o`) + ` AND NOT ` + isBlocked(s, `o`) + `
		ORDER BY seq
		LIMIT 1`
}

// lockQuery locks the row $1, if nobody else has. (In one statement with headQuery it would
// lock the next one where somebody else has the first.) The lock is all it takes, since no
// worker claims anything for the row's destination, and those of other replicas wait
// for it.
func lockQuery(s schema.Postgres) string {
	return `SELECT ` + rowColumns + ` FROM ` + s.Outbox() + `
		WHERE seq = $1::bigint AND published_at IS NULL AND destination = ANY ($2::text[]) AND ` + due + ` FOR UPDATE SKIP LOCKED`
}

// run tries what is due until ctx ends, the brokers beside each other.
func (p *prober) run(ctx context.Context) {
	var tries sync.WaitGroup
	for ctx.Err() == nil {
		p.forgetEnded(ctx)
		due, wait := p.away.due()
		for broker, attempts := range due {
			if p.occupy(broker) {
				tries.Go(func() {
					defer p.release(broker)
					p.tryEach(ctx, attempts)
				})
			}
		}
		sleep(ctx, wait, p.away.changed)
	}
	tries.Wait()
	p.forgetEnded(context.WithoutCancel(ctx))
}

func (p *prober) occupy(broker string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[broker] {
		return false
	}
	p.busy[broker] = true
	return true
}

func (p *prober) release(broker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, broker)
	p.away.wake()
}

func (p *prober) tryEach(ctx context.Context, attempts []attempt) {
	for _, attempt := range attempts {
		if ctx.Err() != nil {
			return
		}
		p.try(ctx, attempt)
	}
}

// try publishes a row of an absence, if no other forwarder has done so lately. If it gets
// through, judge has ended the absence. If not, the next one is of another unit: it may be
// this one's own fault.
func (p *prober) try(ctx context.Context, a attempt) {
	began := time.Now()
	wait, reason := p.away.register(a.absence)
	whose, err := p.registry.take(ctx, a.absence.entry, reason, wait)
	switch {
	case err != nil:
		p.noteDatabase(ctx, err, wait, began)
		p.away.theirs(a.absence, wait)
		return
	case !whose.ours:
		p.away.theirs(a.absence, whose.wait)
		return
	case a.byWorkers:
		p.away.reopen(a.absence)
		return
	}
	found, err := answered(p.turnLimit(), func() (found head, err error) {
		_, err = p.forwardBatch(ctx, func(ctx context.Context, tx *sql.Tx) (taken claim, err error) {
			taken.rows, found, err = p.claimHead(ctx, tx, a)
			return taken, err
		})
		return found, err
	})
	p.noteDatabase(ctx, err, wait, began)
	if err == nil && !found.ok {
		p.away.nothingWaits(a.absence)
		return
	}
	p.away.tried(a.absence, found, wait)
	p.expireIfTooLong(ctx, a, whose.away, reason)
}

func (p *prober) expireIfTooLong(ctx context.Context, a attempt, away time.Duration, reason error) {
	bound := p.config.AfterUnavailable
	if bound == 0 || away < bound || a.absence.entry.kind != kindDestination || !p.away.isAbsent(a.absence) {
		return
	}
	began := time.Now()
	err := p.expire(ctx, a.absence.entry.name, away, reason)
	p.noteDatabase(ctx, err, p.config.RetryMax, began)
}

func (p *prober) noteDatabase(ctx context.Context, err error, wait time.Duration, began time.Time) {
	if err != nil && ctx.Err() == nil {
		p.database.note(databaseTrouble(err), schema.Explain(err), wait, began)
	}
}

// forgetEnded tells others of what is back.
func (p *prober) forgetEnded(ctx context.Context) {
	ended := p.away.takeEnded()
	for i, e := range ended {
		began := time.Now()
		if err := p.registry.remove(ctx, e); err != nil {
			p.noteDatabase(ctx, err, p.config.RetryMax, began)
			p.away.remember(ended[i:]...)
			return
		}
	}
}

// head is a row to try, the first of its unit.
type head struct {
	ok       bool
	seq      int64
	unitHash int64
}

// claimHead returns no row where somebody else has it locked.
func (p *prober) claimHead(ctx context.Context, tx *sql.Tx, a attempt) (rows []row, found head, err error) {
	destinations := pq.StringArray(a.destinations)
	found, err = p.findHead(ctx, tx, a)
	if err != nil || !found.ok {
		return nil, found, err
	}
	var line rowScan
	switch err := tx.QueryRowContext(ctx, p.lockQuery, found.seq, destinations).Scan(line.targets()...); {
	case isNoRows(err):
		return nil, found, nil
	case err != nil:
		return nil, found, fmt.Errorf("lock row %d: %w", found.seq, err)
	}
	return []row{line.row()}, found, nil
}

// findHead begins anew with the units where all have been tried.
func (p *prober) findHead(ctx context.Context, tx *sql.Tx, a attempt) (found head, err error) {
	for _, tried := range [][]int64{a.tried, nil} {
		err := tx.QueryRowContext(ctx, p.headQuery, pq.StringArray(a.destinations), append(pq.Int64Array{}, tried...)).
			Scan(&found.seq, &found.unitHash)
		if err == nil {
			found.ok = true
			return found, nil
		}
		if !isNoRows(err) {
			return head{}, fmt.Errorf("look for a row to try: %w", err)
		}
	}
	return head{}, nil
}

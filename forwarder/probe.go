package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/watermill-outbox/outbox/schema"
)

// prober tries what is away, so that workers have no part in it: a broker that does not
// answer costs them neither time nor lanes.
type prober struct {
	*worker

	rowQuery     string
	waitingQuery string

	mu sync.Mutex
	// busy are brokers of which something is being tried: one row at a time.
	busy map[string]bool
}

func newProber(w *worker) *prober {
	w.probing = true
	return &prober{
		worker:       w,
		rowQuery:     probeQuery(w.config.Schema),
		waitingQuery: `SELECT EXISTS (SELECT FROM ` + w.config.Schema.Outbox() + ` WHERE seq = $1::bigint AND published_at IS NULL)`,
		busy:         map[string]bool{},
	}
}

// probeQuery locks one row, if nobody else has: the lock is all it takes, since no
// worker claims anything for the row's destination, and those of other replicas wait
// for it.
func probeQuery(s schema.Postgres) string {
	return `SELECT ` + rowColumns + ` FROM ` + s.Outbox() + `
		WHERE seq = $1::bigint AND published_at IS NULL AND ` + due + ` FOR UPDATE SKIP LOCKED`
}

// run tries what is due until ctx ends, the brokers beside each other.
func (p *prober) run(ctx context.Context) {
	var tries sync.WaitGroup
	defer tries.Wait()
	for ctx.Err() == nil {
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

// try publishes the row of an absence. If it gets through, judge has ended the absence.
func (p *prober) try(ctx context.Context, a attempt) {
	if a.probe == noProbe {
		p.away.reopen(a.absence)
		return
	}
	began, gone := time.Now(), false
	_, err := p.forwardBatch(ctx, func(ctx context.Context, tx *sql.Tx) (rows []row, err error) {
		rows, gone, err = p.claimProbe(ctx, tx, a.probe)
		return rows, err
	})
	if err != nil && ctx.Err() == nil {
		p.database.note(databaseTrouble(err), schema.Explain(err), p.config.RetryMax, began)
	}
	p.away.tried(a.absence, gone && err == nil)
}

// claimProbe returns no row where it is gone, or not due, or locked by somebody else.
func (p *prober) claimProbe(ctx context.Context, tx *sql.Tx, seq int64) (rows []row, gone bool, err error) {
	var line rowScan
	switch err := tx.QueryRowContext(ctx, p.rowQuery, seq).Scan(line.targets()...); {
	case err == nil:
		return []row{line.row()}, false, nil
	case !isNoRows(err):
		return nil, false, fmt.Errorf("claim row %d: %w", seq, err)
	}
	var waiting bool
	if err := tx.QueryRowContext(ctx, p.waitingQuery, seq).Scan(&waiting); err != nil {
		return nil, false, fmt.Errorf("look for row %d: %w", seq, err)
	}
	return nil, !waiting, nil
}

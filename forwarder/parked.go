package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/lib/pq"
)

// parked is a worker that forwards rows which have waited and are due, and no others: where a Source
// brings those. It takes only lanes in which there are some, since the stream waits for them
// meanwhile.
type parked struct {
	*worker

	query string
	lanes pq.Int64Array
}

// newParked asks for the lanes of the $2 rows that have been due for longest, to destinations that are
// not among $1.
func newParked(w *worker) *parked {
	return &parked{worker: w, query: `SELECT array(SELECT DISTINCT due.unit_hash OPERATOR(pg_catalog.&) (s.lanes OPERATOR(pg_catalog.-) 1)
		FROM ` + w.config.Schema.Settings() + ` AS s, (
			SELECT unit_hash FROM ` + w.config.Schema.Outbox() + `
			WHERE next_attempt_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()
				AND next_attempt_at OPERATOR(pg_catalog.<) 'infinity'::pg_catalog.timestamptz
				AND destination OPERATOR(pg_catalog.<>) ALL ($1::pg_catalog.text[])
			ORDER BY next_attempt_at LIMIT $2::pg_catalog.int4
		) AS due)::pg_catalog.text`}
}

// run looks every PollInterval, and as long as it finds something.
func (p *parked) run(ctx context.Context) {
	backOff := p.config.newBackOff()
	for ctx.Err() == nil {
		began := time.Now()
		var out outcome
		err := p.look(ctx)
		if err == nil && len(p.lanes) > 0 {
			out, err = p.turn(ctx, p.claimDue)
		}
		if errors.Is(err, errUnanswered) { // the call that does not come back may still use all that p has
			p.database.note(databaseTrouble(err), err, 0, began)
			p.giveUp()
			newParked(p.another()).run(ctx)
			return
		}
		if err == nil {
			p.database.over()
		}
		p.noteConfirmed(out)
		switch {
		case ctx.Err() != nil:
		case err != nil, out.obstacle != nil && out.confirmed == 0:
			p.pause(ctx, out, err, began, backOff)
		case out.claimed == 0:
			sleep(ctx, p.config.PollInterval, nil)
		default:
			backOff.Reset()
		}
	}
}

func (p *parked) look(ctx context.Context) (err error) {
	p.lanes, err = answered(2*p.config.DatabaseTimeout, func() (lanes pq.Int64Array, err error) {
		ctx, cancel := context.WithTimeout(ctx, p.config.DatabaseTimeout)
		defer cancel()
		away := append(pq.StringArray{}, p.claimer.marks.leftOut()...)
		err = inReadOnlyTx(ctx, p.db, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, p.query, away, p.config.BatchSize).Scan(&lanes) //nolint:wrapcheck // pause tells what went wrong
		})
		return lanes, err
	})
	return err
}

func (p *parked) claimDue(ctx context.Context, tx *sql.Tx) (claim, error) {
	ask := p.nextRequest(time.Now())
	ask.waiting, ask.onlyWaiting, ask.hot, ask.onlyHot = true, true, p.lanes, true
	taken, err := p.claimer.claim(ctx, tx, ask)
	if hasSQLState(err, lockNotAvailable) {
		p.passUntil = time.Now().Add(p.config.RetryMax)
	}
	return taken, err
}

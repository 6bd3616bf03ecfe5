package forwarder

import (
	"context"
	"time"

	"github.com/lib/pq"
)

// parked is a worker that forwards rows which have waited and are due, and no others: where a Source
// brings those.
type parked struct {
	*worker

	query string
}

func newParked(w *worker) *parked {
	return &parked{worker: w, query: `SELECT EXISTS (SELECT FROM ` + w.config.Schema.Outbox() + `
		WHERE next_attempt_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()
			AND next_attempt_at OPERATOR(pg_catalog.<) 'infinity'::pg_catalog.timestamptz
			AND destination OPERATOR(pg_catalog.<>) ALL ($1::pg_catalog.text[]))`}
}

// run looks every PollInterval, and as long as it finds something.
func (p *parked) run(ctx context.Context) {
	backOff := p.config.newBackOff()
	for ctx.Err() == nil {
		began := time.Now()
		var out outcome
		some, err := p.look(ctx)
		if err == nil && some {
			out, err = p.turn(ctx, p.claimDue)
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

func (p *parked) look(ctx context.Context) (some bool, err error) {
	return answered(2*p.config.DatabaseTimeout, func() (some bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, p.config.DatabaseTimeout)
		defer cancel()
		err = p.db.QueryRowContext(ctx, p.query, append(pq.StringArray{}, p.claimer.marks.leftOut()...)).Scan(&some)
		return some, err //nolint:wrapcheck // pause tells what went wrong
	})
}

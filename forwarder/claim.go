package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/lib/pq"
)

// claimer takes rows out of the reach of other workers and replicas.
type claimer struct {
	config   Config
	workers  int
	lockBase int64
	marks    *marks
	table    string
	settings string
	history  string
	// spares says that the driver sends a statement without parameters in a single round trip,
	// and does not keep it.
	spares bool

	flow    flowQueries
	changes changesQueries
	waiting waitingQueries
}

func newClaimer(cfg Config, marks *marks, db *sql.DB) claimer {
	_, isPQ := db.Driver().(*pq.Driver)
	return claimer{
		spares:   isPQ,
		config:   cfg,
		workers:  cfg.Workers,
		lockBase: cfg.Schema.LockBase(),
		marks:    marks,
		table:    cfg.Schema.Outbox(),
		settings: cfg.Schema.Settings(),
		history:  historyExpression(cfg.Schema),
		flow:     newFlowQueries(cfg),
		changes:  newChangesQueries(cfg),
		waiting:  newWaitingQueries(cfg),
	}
}

// request says what a claim is to look for.
type request struct {
	// rows is the most that it takes. Default: BatchSize.
	rows int
	// lane is the one to begin with, or anyLane.
	lane int
	// waiting has it look for rows that have waited and are due, onlyWaiting for nothing else.
	waiting, onlyWaiting bool
	// passing has it pass by the units of rows that others have locked, instead of waiting
	// for them.
	passing bool
	// tried are the hashes of units that it leaves out.
	tried pq.Int64Array
	// hot are lanes that it leaves out, or the only ones that it takes: hot ones, and others.
	hot     pq.Int64Array
	onlyHot bool
}

// claim is what a claim has taken.
type claim struct {
	// rows are to be published, in the order of seq.
	rows []row
	// lanes are those that it holds, of total.
	lanes []int64
	total int
	// partial says that units were left out.
	partial bool
	// parked is how many others it has put aside, behind one that waits.
	parked int
	// more says that rows that are due may have been left.
	more bool
}

// claim takes the next rows. An empty result says that there is nothing to do, or that
// others hold it.
//
// Lanes and rows are two statements, and the transaction is READ COMMITTED: the
// second statement gets a snapshot taken after the lanes were won, in which whatever
// their last holder settled is gone. In one statement the snapshot would be older
// than the lock, and settled rows would be sent again.
//
// There are two kinds of rows. Those that have failed, and those that were found behind
// one of their unit, wait: they stand in indexes of their own. All others are the flow,
// which is read in the order of seq. So however many rows wait, they are read when they
// are due and not before. One that is due is left for later where the flow has not come so far:
// rows of its unit may be in between that a forwarder without Ordering has left there.
//
// A row that somebody else has locked is waited for, up to lock_timeout, so that nothing
// of its unit overtakes it.
func (c claimer) claim(ctx context.Context, tx *sql.Tx, ask request) (claim, error) {
	in, err := c.occupy(ctx, tx, ask)
	if err != nil || len(in.lanes) == 0 {
		return claim{}, err
	}
	if err := c.marks.lookAhead(ctx, tx, c.table, in.history); err != nil {
		return claim{}, fmt.Errorf("look for writers: %w", err)
	}
	if ask.rows == 0 {
		ask.rows = c.config.BatchSize
	}
	ask.tried = append(pq.Int64Array{}, ask.tried...) // never NULL
	var due dueRows
	if ask.waiting {
		if due, err = c.claimDue(ctx, tx, ask, in); err != nil {
			return claim{}, fmt.Errorf("claim rows that are due: %w", err)
		}
	}
	if ask.onlyWaiting {
		return claim{rows: due.rows, lanes: in.lanes, total: in.total, more: due.more}, nil
	}
	flowing, err := c.claimFlow(ctx, tx, ask, due, in)
	if err != nil {
		return claim{}, fmt.Errorf("claim rows: %w", err)
	}
	if c.config.Ordering == PerKey && due.last() > flowing.until {
		due = due.upTo(flowing.until)
		if flowing, err = c.claimFlow(ctx, tx, ask, due, in); err != nil {
			return claim{}, fmt.Errorf("claim rows: %w", err)
		}
	}
	due = due.without(flowing.missing)
	if err := c.park(ctx, tx, flowing.held); err != nil {
		return claim{}, err
	}
	rows := slices.Concat(due.rows, flowing.rows)
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
	return claim{rows: rows, lanes: in.lanes, total: in.total, partial: len(ask.tried) > 0, parked: len(flowing.held), more: due.more}, nil
}

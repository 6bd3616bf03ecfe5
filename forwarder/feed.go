package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/lib/pq"
)

// feed forwards what a Source brings. Each time that a stream is opened, the table is drained before
// anything of it is sent: what the stream does not have (rows that were committed before it
// began, or while there was none) is there. So nothing need be known of what the stream had
// before, and a change that was settled already is found to be gone.
type feed struct {
	source    Source
	newWorker func() *worker
	worker    *worker
	outage    *outage
	logger    watermill.LoggerAdapter

	restQuery  string
	parkQuery  string
	firstQuery string
	leftQuery  string
	newest     string
	lanesQuery string
}

// closeTimeout bounds how long the end of a stream takes.
const closeTimeout = 10 * time.Second

func newFeed(source Source, newWorker func() *worker, logger watermill.LoggerAdapter) *feed {
	w := newWorker()
	outbox := w.config.Schema.Outbox()
	const inFlow = ` WHERE published_at IS NULL AND next_attempt_at IS NULL AND seq <= $1::bigint`
	return &feed{
		source: source, newWorker: newWorker, worker: w, logger: logger,
		outage:    &outage{what: "Source", logger: logger},
		newest:    `SELECT coalesce(max(seq), 0) FROM ` + outbox,
		restQuery: `SELECT EXISTS (SELECT FROM ` + outbox + inFlow + ` AND destination <> ALL ($2::text[]))`,
		parkQuery: `UPDATE ` + outbox + ` SET next_attempt_at = clock_timestamp() WHERE seq = ANY (ARRAY(
			SELECT seq FROM ` + outbox + inFlow + ` AND destination = ANY ($2::text[])
				AND (unit_hash & ($3::integer - 1)) = ANY ($4::integer[])
			ORDER BY seq LIMIT $5::integer FOR UPDATE))`,
		firstQuery: `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, array(SELECT seq FROM ` + outbox + `
			WHERE published_at IS NULL AND next_attempt_at IS NULL AND destination <> ALL ($1::text[])
			ORDER BY seq LIMIT 100)::text`,
		leftQuery: `SELECT EXISTS (SELECT FROM ` + outbox + `
			WHERE published_at IS NULL AND next_attempt_at IS NULL AND destination <> ALL ($1::text[]) AND seq = ANY ($2::bigint[]))`,
		lanesQuery: `SELECT lanes FROM ` + w.config.Schema.Settings(),
	}
}

// run goes on with another stream where one ends, until ctx does. While there is none, the table is read.
func (f *feed) run(ctx context.Context) {
	backOff := f.worker.config.newBackOff()
	for ctx.Err() == nil {
		began := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errLeftBehind) || errors.Is(err, errLocked) {
			f.logger.Info("Table is drained, and the stream begun anew", watermill.LogFields{"reason": err.Error()})
			continue
		}
		if time.Since(began) > f.worker.config.RetryMax {
			backOff.Reset()
		}
		wait := f.worker.config.next(backOff)
		f.outage.note("Stream of changes has ended, the table is read until another one is open", err, wait, began)
		f.readTable(ctx, wait)
	}
}

// follow forwards a stream until it ends.
func (f *feed) follow(ctx context.Context) (err error) {
	if err := f.prepare(ctx); err != nil {
		return fmt.Errorf("prepare a stream: %w", err)
	}
	stream, err := f.source.Open(ctx)
	if err != nil {
		return fmt.Errorf("open a stream: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, stream.Close(ctx))
	}()
	lanes, err := f.drain(ctx)
	if err != nil {
		return err
	}
	f.outage.over()
	return f.forward(ctx, stream, lanes)
}

// partsAhead is how many parts of what a stream brings at once a worker may have to come, so that one
// that is busy does not keep others waiting.
const partsAhead = 4

// forward hands the changes to workers, each those of its lanes, until the stream ends or a worker
// does. It returns when all have.
func (f *feed) forward(ctx context.Context, stream Stream, lanes int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := &progress{settled: stream.Settled}
	queues := make([]chan []*change, min(f.worker.config.Workers, lanes))
	var working sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan []*change, partsAhead)
		s := &streamer{worker: f.newWorker(), queue: queues[i], progress: done}
		s.streams = true
		working.Go(func() { cancel(s.run(ctx)) })
	}
	working.Go(func() { cancel(f.lookBehind(ctx, stream)) })
	defer working.Wait()
	defer cancel(nil)
	for {
		changed, err := stream.Next(ctx)
		if err != nil {
			cancel(fmt.Errorf("next changes: %w", err))
			return context.Cause(ctx)
		}
		parts := make([][]*change, len(queues))
		all := make([]*change, len(changed))
		for i, c := range changed {
			all[i] = &change{row: rowOf(c), position: c.Position, transaction: c.Transaction}
			n := int(all[i].unitHash&int64(lanes-1)) % len(queues)
			parts[n] = append(parts[n], all[i])
		}
		done.add(all)
		for n, part := range parts {
			if len(part) == 0 {
				continue
			}
			select {
			case queues[n] <- part:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// drain forwards what is in the table, as far as it is to be sent now, and returns how many lanes there
// are. What is committed meanwhile the stream has too.
func (f *feed) drain(ctx context.Context) (lanes int, err error) {
	var newest int64
	if err := errors.Join(f.read(ctx, f.lanesQuery, nil, &lanes), f.read(ctx, f.newest, nil, &newest)); err != nil {
		return 0, fmt.Errorf("look into the table: %w", err)
	}
	defer f.startWorkers(ctx)()
	for ctx.Err() == nil {
		var rest bool
		away := f.away()
		if err := f.read(ctx, f.restQuery, []any{newest, away}, &rest); err != nil {
			return 0, fmt.Errorf("look for rows from before the stream: %w", err)
		}
		if !rest {
			if rest, err = f.parkAway(ctx, newest, away); err != nil {
				return 0, fmt.Errorf("park rows from before the stream: %w", err)
			}
		}
		if !rest {
			return lanes, nil
		}
		sleep(ctx, drainPoll, nil)
	}
	return 0, ctx.Err()
}

func (f *feed) prepare(ctx context.Context) error {
	defer f.startWorkers(ctx)()
	return f.source.Prepare(ctx) //nolint:wrapcheck // follow wraps it
}

func (f *feed) readTable(ctx context.Context, last time.Duration) {
	defer f.startWorkers(ctx)()
	sleep(ctx, last, nil)
}

// startWorkers has workers read the table until stop is called, which waits for them.
func (f *feed) startWorkers(ctx context.Context) (stop func()) {
	f.worker.claimer.marks.forget()
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for range f.worker.config.Workers {
		w := f.newWorker()
		workers.Go(func() { w.run(ctx) })
	}
	return func() {
		cancel()
		workers.Wait()
	}
}

// parkAway has rows wait whose destinations are away, as far as nobody else holds their lanes, and
// says whether there may be more.
func (f *feed) parkAway(ctx context.Context, newest int64, away pq.StringArray) (more bool, err error) {
	if len(away) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 4*f.worker.config.DatabaseTimeout)
	defer cancel()
	tx, err := f.worker.begin(ctx, 1)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	all := f.worker.claimer
	all.workers = 1
	in, err := all.occupy(ctx, tx, request{lane: anyLane})
	if err != nil {
		return false, err
	}
	result, err := tx.ExecContext(ctx, f.parkQuery, newest, away, in.total, in.lanes, f.worker.config.BatchSize)
	if err != nil {
		return false, err //nolint:wrapcheck // drain wraps it
	}
	parked, err := result.RowsAffected()
	if err != nil {
		return false, err //nolint:wrapcheck // drain wraps it
	}
	return parked > 0 || len(in.lanes) < in.total, tx.Commit()
}

// drainPoll is between two looks whether the table is drained.
const drainPoll = 20 * time.Millisecond

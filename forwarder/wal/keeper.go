package wal

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// keeper writes down what is settled, before the slot confirms it.
type keeper struct {
	conn   *pgconn.PgConn
	settle func(ctx context.Context, conn *pgconn.PgConn, upTo pglogrepl.LSN) error
	// asked gets something when the server waits for a report.
	asked chan struct{}
	last  atomic.Uint64

	settled *settled
}

// keepStep is how far the log goes on before that is written down, though no row was settled: what is
// written is in the log too, which would go on for ever.
const keepStep = 64 << 10

// newKeeper takes the position that is written down, and confirmed: the server reads the log from further
// back, and says so, and the slot is not to go back.
func newKeeper(
	conn *pgconn.PgConn, from pglogrepl.LSN, settle func(context.Context, *pgconn.PgConn, pglogrepl.LSN) error,
) *keeper {
	k := &keeper{conn: conn, settle: settle, asked: make(chan struct{}, 1)}
	k.last.Store(uint64(from))
	return k
}

// kept is what was written down.
func (k *keeper) kept() pglogrepl.LSN { return pglogrepl.LSN(k.last.Load()) }

// hurry has it written down at once, as far as it has moved at all: a server that shuts down waits for
// that, or for the end of the stream.
func (k *keeper) hurry() { signal(k.asked) }

// run works until ctx ends, or what is settled cannot be written down.
func (k *keeper) run(ctx context.Context, every time.Duration) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	rows := 0
	for {
		isAsked := false
		select {
		case <-ticker.C:
		case <-k.asked:
			isAsked = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		position, settledRows := k.settled.progress()
		if position <= k.kept() || !isAsked && settledRows == rows && position < k.kept()+keepStep {
			continue
		}
		if err := k.keep(ctx, position); err != nil {
			return err
		}
		rows = settledRows
	}
}

func (k *keeper) keep(ctx context.Context, position pglogrepl.LSN) error {
	if err := k.settle(ctx, k.conn, position); err != nil {
		return err
	}
	k.last.Store(uint64(position))
	return nil
}

// end writes down the last of it. What is not written down comes again, also from a slot that was suspended.
func (k *keeper) end(ctx context.Context) error {
	var err error
	if position, _ := k.settled.progress(); position > k.kept() && !k.conn.IsClosed() {
		if err = k.keep(ctx, position); errors.Is(err, ErrSuspended) {
			err = nil
		}
	}
	return errors.Join(err, k.hangUp(ctx))
}

func (k *keeper) hangUp(ctx context.Context) error {
	if k.conn.IsClosed() {
		return nil
	}
	return hangUp(ctx, k.conn)
}

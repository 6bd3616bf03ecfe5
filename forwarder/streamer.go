package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// streamer is a worker that forwards the changes of its lanes.
type streamer struct {
	*worker

	queue    <-chan []*change
	progress *progress
	// pending are taken from the queue, and not settled yet.
	pending []*change
}

// errLocked has the table drained, until the stream can go on.
var errLocked = errors.New("forwarder: somebody has locked rows for long that the stream has brought")

// run works until ctx ends. What is pending then comes again with the next stream. An error says that
// it cannot go on; if the database does not answer, it may still be at it.
func (s *streamer) run(ctx context.Context) error {
	backOff := s.config.newBackOff()
	for s.await(ctx) {
		began := time.Now()
		batch := s.batch()
		out, err := s.turn(ctx, func(ctx context.Context, tx *sql.Tx) (claim, error) { return s.claimer.claimChanges(ctx, tx, batch) })
		// A server that shuts down waits for the stream to confirm all.
		if errors.Is(err, errUnanswered) || hasSQLState(err, cannotConnectNow) {
			return err
		}
		if hasSQLState(err, lockNotAvailable) { // who reads the table passes by what is locked
			return fmt.Errorf("%w: %w", errLocked, err)
		}
		if errors.Is(err, errNotVisible) {
			sleep(ctx, visibilityPoll, nil)
			continue
		}
		if err == nil {
			s.database.over()
			s.finish(batch, out.left)
		}
		s.noteConfirmed(out)
		if ctx.Err() == nil && (err != nil || out.obstacle != nil && out.confirmed == 0) {
			s.pause(ctx, out, err, began, backOff)
		} else {
			backOff.Reset()
		}
	}
	return nil
}

// visibilityPoll is between two looks whether a transaction is visible.
const visibilityPoll = time.Millisecond

// await returns when something is pending, and takes what is there up to a batch; false: ctx has ended.
func (s *streamer) await(ctx context.Context) bool {
	for len(s.pending) == 0 {
		select {
		case more := <-s.queue:
			s.pending = append(s.pending, more...)
		case <-ctx.Done():
			return false
		}
	}
	for len(s.pending) < s.config.BatchSize && s.pendingBytes() < s.config.BatchBytes {
		select {
		case more := <-s.queue:
			s.pending = append(s.pending, more...)
			continue
		default:
		}
		break
	}
	return ctx.Err() == nil
}

// pendingBytes counts fewer than BatchSize changes.
func (s *streamer) pendingBytes() (bytes int) {
	for _, c := range s.pending {
		bytes += c.bytes
	}
	return bytes
}

// batch is as many as a batch may have.
func (s *streamer) batch() []*change {
	limit := s.config.BatchSize
	if s.routes == nil {
		limit, _ = s.paces.of("").now()
	}
	bytes := 0
	for i, c := range s.pending[:min(limit, len(s.pending))] {
		if bytes += c.bytes; bytes > s.config.BatchBytes && i > 0 {
			return s.pending[:i]
		}
	}
	return s.pending[:min(limit, len(s.pending))]
}

// finish keeps those of a batch that are left as they were.
func (s *streamer) finish(batch []*change, left map[int64]bool) {
	var done, again []*change
	for _, c := range batch {
		if left[c.seq] {
			again = append(again, c)
		} else {
			done = append(done, c)
		}
	}
	s.pending = append(again, s.pending[len(batch):]...)
	s.progress.finish(done)
}

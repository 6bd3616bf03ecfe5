package wal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/schema"
)

const (
	// statusInterval is the longest time between two reports of what is confirmed. The server gives
	// up a reader that reports nothing for wal_sender_timeout.
	statusInterval = time.Second
	// silence is how long a server may send nothing, though it is asked with each report.
	silence = 30 * time.Second
	// leaveTimeout bounds the wait for a server that is to hang up.
	leaveTimeout = 3 * time.Second
)

// stream is read by a goroutine of its own, so that the server gets its reports whatever becomes of
// what was read.
type stream struct {
	settled

	conn   *pgconn.PgConn
	schema schema.Postgres
	queue  *queue
	keeper *keeper
	// every is between two reports.
	every time.Duration

	// cancel ends the reader and the keeper, done is closed when they have ended.
	cancel context.CancelFunc
	done   chan struct{}
	close  func(ctx context.Context) error

	// What follows is the reader's alone.

	reported time.Time
	heard    time.Time
	layout   layout
	outbox   uint32
	at       pglogrepl.LSN
	xid      uint32
}

func newStream(
	ctx context.Context, conn *pgconn.PgConn, cfg Config, every time.Duration, keeper *keeper, ended func(error, pglogrepl.LSN),
) *stream {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // it ends with Close
	s := &stream{
		conn: conn, schema: cfg.Schema, queue: newQueue(cfg.QueueBytes), every: every, keeper: keeper,
		settled: settled{confirmed: keeper.kept()},
		cancel:  func() { cancel(nil) }, done: make(chan struct{}), heard: time.Now(),
	}
	keeper.settled = &s.settled
	var once sync.Once
	var err error
	s.close = func(ctx context.Context) error {
		once.Do(func() { err = s.end(ctx) })
		return err
	}
	var both sync.WaitGroup
	both.Go(func() {
		err := s.read(ctx)
		cancel(err)
		ended(err, keeper.kept())
		s.queue.end(err)
	})
	both.Go(func() { cancel(keeper.run(ctx, every)) })
	go func() {
		defer close(s.done)
		both.Wait()
	}()
	return s
}

// Next returns the next changes.
func (s *stream) Next(ctx context.Context) ([]forwarder.Change, error) { return s.queue.take(ctx) }

// Settled says what is not needed again.
func (s *stream) Settled(upTo forwarder.Position) { s.settle(upTo) }

// Confirmed is the position up to which nothing is needed again.
func (s *stream) Confirmed() uint64 { return uint64(s.position()) }

// Close ends the stream.
func (s *stream) Close(ctx context.Context) error { return s.close(ctx) }

func (s *stream) end(ctx context.Context) error {
	s.cancel()
	<-s.done // it waits for nothing else
	if s.conn.IsClosed() {
		return s.keeper.hangUp(ctx) // what the slot does not confirm any more comes again
	}
	return errors.Join(s.keeper.end(ctx), s.report(ctx, false), s.leave(ctx), hangUp(ctx, s.conn))
}

// leave waits until the server has hung up: it has the last report then, and the slot is free. What it sends
// meanwhile comes again.
func (s *stream) leave(ctx context.Context) error {
	deadline := time.Now().Add(leaveTimeout)
	if limit, isLimited := ctx.Deadline(); isLimited && limit.Before(deadline) {
		deadline = limit
	}
	s.conn.Frontend().Send(&pgproto3.Terminate{})
	err := errors.Join(s.conn.Conn().SetDeadline(deadline), s.conn.Frontend().Flush())
	if err != nil {
		return fmt.Errorf("wal: leave: %w", err)
	}
	_, _ = io.Copy(io.Discard, s.conn.Conn()) // a server that is lost notices by itself
	return nil
}

// read goes on until ctx ends, or the stream.
func (s *stream) read(ctx context.Context) error {
	for ctx.Err() == nil {
		if now := time.Now(); now.Sub(s.reported) >= s.every {
			if now.Sub(s.heard) > silence {
				return errors.Join(fmt.Errorf("%w for %s", ErrSilent, silence), hangUp(ctx, s.conn))
			}
			if err := s.report(ctx, now.Sub(s.heard) > silence/2); err != nil {
				return err
			}
		}
		if s.queue.isFull() {
			s.awaitRoom(ctx)
			continue
		}
		if err := s.receive(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return context.Cause(ctx) //nolint:wrapcheck // the keeper's, or nobody asks
}

// awaitRoom waits until there is room, or a report is due. What the server sends meanwhile, it has
// sent when it is read.
func (s *stream) awaitRoom(ctx context.Context) {
	timer := time.NewTimer(time.Until(s.reported.Add(s.every)))
	defer timer.Stop()
	select {
	case <-s.queue.emptied:
	case <-timer.C:
	case <-ctx.Done():
	}
	s.heard = time.Now()
}

func (s *stream) report(ctx context.Context, ask bool) error {
	s.reported = time.Now()
	position := s.keeper.kept()
	// The bound of the write is the connection's: a server that reads nothing is silent as well.
	if err := s.conn.Conn().SetWriteDeadline(s.reported.Add(silence)); err != nil {
		return fmt.Errorf("wal: report: %w", err)
	}
	err := pglogrepl.SendStandbyStatusUpdate(ctx, s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: position, WALFlushPosition: position, WALApplyPosition: position, ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("wal: report: %w", err)
	}
	return nil
}

// receive waits for a message until a report is due.
func (s *stream) receive(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, s.reported.Add(s.every))
	defer cancel()
	message, err := s.conn.ReceiveMessage(ctx)
	if ctx.Err() != nil && pgconn.Timeout(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wal: receive: %w", err)
	}
	s.heard = time.Now()
	switch m := message.(type) {
	case *pgproto3.CopyData:
		return s.take(m.Data)
	case *pgproto3.ErrorResponse:
		return fmt.Errorf("wal: the server ends the stream: %w", pgconn.ErrorResponseToPgError(m))
	case *pgproto3.CopyDone:
		return errEnded
	default: // notices, settings that have changed
		return nil
	}
}

var errEnded = errors.New("wal: the server has ended the stream")

func (s *stream) take(data []byte) error {
	if len(data) == 0 {
		return fmt.Errorf("%w: an empty message", errProtocol)
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return fmt.Errorf("%w: %w", errProtocol, err)
		}
		s.passed(keepalive.ServerWALEnd)
		if keepalive.ReplyRequested {
			s.reported = time.Time{}
			s.keeper.hurry()
		}
		return nil
	case pglogrepl.XLogDataByteID:
		part, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return fmt.Errorf("%w: %w", errProtocol, err)
		}
		return s.decode(part.WALData)
	default:
		return fmt.Errorf("%w: a message of type %q", errProtocol, data[0])
	}
}

var errProtocol = errors.New("wal: the server sent what is not to be understood")

// decode takes what pgoutput says. What is no insert into the outbox concerns nobody.
func (s *stream) decode(data []byte) error {
	message, err := pglogrepl.Parse(data)
	if err != nil {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	switch m := message.(type) {
	case *pglogrepl.BeginMessage:
		s.at, s.xid = m.FinalLSN, m.Xid
		s.begin()
	case *pglogrepl.CommitMessage:
		s.commit(m.CommitLSN, m.TransactionEndLSN)
	case *pglogrepl.RelationMessage:
		return s.learn(m)
	case *pglogrepl.InsertMessage:
		if m.RelationID != s.outbox || s.layout == nil {
			return nil
		}
		change, err := s.layout.change(m.Tuple)
		if err != nil {
			return err
		}
		change.Position, change.Transaction = s.place(s.at), s.xid
		s.queue.push(change)
	}
	return nil
}

// learn is told of each table before its first row, and when it has changed.
func (s *stream) learn(m *pglogrepl.RelationMessage) (err error) {
	name := quote(m.Namespace) + "." + quote(m.RelationName)
	if name != s.schema.Outbox() {
		if m.RelationID == s.outbox {
			return fmt.Errorf("%w: it is called %s now", ErrSchemaDrift, name)
		}
		return nil
	}
	s.outbox = m.RelationID
	s.layout, err = layoutOf(m)
	return err
}

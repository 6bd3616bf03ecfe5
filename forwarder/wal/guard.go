package wal

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-outbox/outbox/schema"
)

// Status is what a replica knows of the slot.
type Status struct {
	Slot string
	// RetainedWAL is how many bytes of the log the slot keeps, as it was measured last; 0 if
	// there is no slot.
	RetainedWAL int64
	// MaxRetainedWAL is the Config's.
	MaxRetainedWAL int64
	// MeasuredAt is when that was; zero: not yet.
	MeasuredAt time.Time
	// Suspended says why the log is not read: "" if it is.
	Suspended string
}

// guard is what was seen last.
type guard struct {
	mu     sync.Mutex
	status Status
}

// guardInterval is between two measurements. So a slot keeps at most what is written in it
// beyond MaxRetainedWAL, and what is left of a segment.
const guardInterval = time.Second

// Status returns what was measured last, by this replica's forwarder. It is safe for concurrent use.
func (s *Source) Status() Status {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	status := s.guard.status
	status.Slot, status.MaxRetainedWAL = s.config.Slot, s.config.MaxRetainedWAL
	return status
}

// Watch measures what the slot keeps of the log, and suspends it where that is too much, until ctx
// ends. A forwarder calls it, in each replica, whichever reads the slot.
func (s *Source) Watch(ctx context.Context) {
	var conn *pgconn.PgConn
	defer func() {
		if conn != nil {
			_ = hangUp(ctx, conn)
		}
	}()
	ticker := time.NewTicker(guardInterval)
	defer ticker.Stop()
	failing := false
	for {
		err := s.watchOnce(ctx, &conn)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			s.logger.Error("What the slot keeps of the write-ahead log cannot be measured", err, nil)
		}
		failing = err != nil
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Source) watchOnce(ctx context.Context, conn **pgconn.PgConn) (err error) {
	if *conn == nil || (*conn).IsClosed() {
		if *conn, err = s.connectPlainly(ctx); err != nil {
			return err
		}
	}
	return s.measureAndAct(ctx, *conn)
}

// measureAndAct looks once, and does what is to be done.
func (s *Source) measureAndAct(ctx context.Context, conn *pgconn.PgConn) error {
	seen, isThere, isLost, err := s.measure(ctx, conn)
	if err != nil {
		return err
	}
	budget := s.config.MaxRetainedWAL
	switch {
	case seen.Suspended != "":
		if isThere { // made by somebody who did not know yet
			err = s.drop(ctx, conn)
		}
	case isLost:
		seen.Suspended = lostReason
		err = s.suspend(ctx, conn, seen.Suspended)
	case seen.RetainedWAL > budget:
		seen.Suspended = fmt.Sprintf("it kept %d bytes of the write-ahead log, allowed are %d", seen.RetainedWAL, budget)
		err = s.suspend(ctx, conn, seen.Suspended)
	}
	s.note(seen)
	return err
}

func (s *Source) measure(ctx context.Context, conn *pgconn.PgConn) (seen Status, isThere, isLost bool, err error) {
	slot := text(s.config.Slot)
	row, err := query(ctx, conn, `SELECT
			coalesce((SELECT suspended_because FROM `+s.config.Schema.Slots()+` WHERE slot = `+slot+` AND suspended_at IS NOT NULL), ''),
			s.slot_name IS NOT NULL, coalesce(s.wal_status = '`+lost+`', false),
			greatest(0, coalesce(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn), 0))::bigint
		FROM (VALUES (1)) AS one
		LEFT JOIN pg_replication_slots AS s ON s.slot_name = `+slot+` AND s.database = current_database() AND s.plugin = '`+plugin+`'`)
	if err != nil {
		return Status{}, false, false, fmt.Errorf("wal: measure what the slot keeps: %w", schema.Explain(err))
	}
	seen = Status{Suspended: row[0], MeasuredAt: time.Now()}
	if seen.RetainedWAL, err = strconv.ParseInt(row[3], 10, 64); err != nil {
		return Status{}, false, false, fmt.Errorf("wal: measure what the slot keeps: %w", err)
	}
	return seen, row[1] == "t", row[2] == "t", nil
}

// note keeps what was seen, and says what is new and bad.
func (s *Source) note(seen Status) {
	s.guard.mu.Lock()
	before := s.guard.status
	s.guard.status = seen
	s.guard.mu.Unlock()
	half := s.config.MaxRetainedWAL / 2
	fields := watermill.LogFields{"retained_wal": seen.RetainedWAL, "max_retained_wal": s.config.MaxRetainedWAL}
	switch {
	case seen.Suspended != "" && before.Suspended == "":
		s.logger.Error("The slot is suspended, the table is read until Resume is called: "+seen.Suspended, nil, fields)
	case seen.Suspended == "" && seen.RetainedWAL > half && before.RetainedWAL <= half:
		s.logger.Error("The slot keeps more than half of what it may of the write-ahead log", nil, fields)
	default:
		return
	}
	if s.config.OnAlarm != nil {
		s.config.OnAlarm(s.Status())
	}
}

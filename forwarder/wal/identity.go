package wal

import (
	"context"
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// identity is what a slot is, as far as that can be told.
type identity struct {
	system   string
	timeline int
	// isSynced says that a standby has kept it up to date with the primary's, and was promoted since.
	isSynced  bool
	confirmed pglogrepl.LSN
}

// identify asks while nobody else reads the slot.
func (s *Source) identify(ctx context.Context, conn *pgconn.PgConn) (found identity, err error) {
	row, err := query(ctx, conn, `SELECT (pg_control_system()).system_identifier,
		('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
		coalesce(to_jsonb(s) ->> 'synced', 'false'), coalesce(confirmed_flush_lsn, '0/0')
		FROM pg_replication_slots AS s WHERE slot_name = `+text(s.config.Slot))
	if err != nil {
		return identity{}, fmt.Errorf("wal: look what the slot is: %w", err)
	}
	if row == nil {
		return identity{}, fmt.Errorf("%w: %s", ErrNoSlot, s.config.Slot)
	}
	found = identity{system: row[0], isSynced: row[2] == "true"}
	if found.timeline, err = strconv.Atoi(row[1]); err != nil {
		return identity{}, fmt.Errorf("wal: timeline: %w", err)
	}
	if found.confirmed, err = pglogrepl.ParseLSN(row[3]); err != nil {
		return identity{}, fmt.Errorf("wal: position %q: %w", row[3], err)
	}
	return found, nil
}

// gap says why there may be rows that were never read from the log, behind what is written down; "" if
// there are none.
func gap(known record, found identity) string {
	switch {
	case !known.isThere, known.system == "":
		return ""
	case known.system != found.system:
		return "the server is another one"
	case known.timeline != found.timeline && !found.isSynced:
		return "the server was promoted or restored"
	case known.settled < found.confirmed:
		return "the slot was made anew, or moved on"
	default:
		return ""
	}
}

// begin compares the slot with what is written down, and writes down what it is. What a slot has missed
// is in the table, which is drained before anything of a stream is sent. It returns what the slot has confirmed.
func (s *Source) begin(ctx context.Context, conn *pgconn.PgConn) (from pglogrepl.LSN, err error) {
	known, err := s.readRecord(ctx, conn)
	if err != nil {
		return 0, err
	}
	if known.isSuspended {
		return 0, known.suspended(s.config.Slot)
	}
	found, err := s.identify(ctx, conn)
	if err != nil {
		return 0, err
	}
	if reason := gap(known, found); reason != "" {
		s.logger.Info("The slot is not the one that it was, the table has what it has missed", watermill.LogFields{
			"reason": reason, "settled": known.settled.String(), "confirmed": found.confirmed.String(),
		})
	}
	return found.confirmed, s.keep(ctx, conn, found)
}

package wal

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-outbox/outbox/schema"
)

// A replication slot has nothing that tells it from another one of its name. So what is settled is
// written down before the slot confirms it: a slot that has confirmed more is another one, or was
// moved on by somebody else, and there may be rows that nobody has read from the log.

// record is what was written down of a slot.
type record struct {
	isThere, isSuspended bool

	because  string // it is suspended
	system   string
	timeline int
	settled  pglogrepl.LSN
}

func (s *Source) readRecord(ctx context.Context, conn *pgconn.PgConn) (r record, err error) {
	row, err := query(ctx, conn, `SELECT system_identifier, timeline, settled, suspended_at IS NOT NULL, coalesce(suspended_because, '')
		FROM `+s.config.Schema.Slots()+` WHERE slot = `+text(s.config.Slot))
	if err != nil {
		return record{}, fmt.Errorf("wal: read what is known of the slot: %w", schema.Explain(err))
	}
	if row == nil {
		return record{}, nil
	}
	r = record{isThere: true, system: row[0], isSuspended: row[3] == "t", because: row[4]}
	r.timeline, err = strconv.Atoi(row[1])
	settled, err2 := pglogrepl.ParseLSN(row[2])
	r.settled = settled
	if err := errors.Join(err, err2); err != nil {
		return record{}, fmt.Errorf("wal: read what is known of the slot: %w", err)
	}
	return r, nil
}

// suspended is the error that says so.
func (r record) suspended(slot string) error {
	return fmt.Errorf("%w: %s: %s", ErrSuspended, slot, r.because)
}

// keep writes down what the slot is, and from where it is read.
func (s *Source) keep(ctx context.Context, conn *pgconn.PgConn, of identity) error {
	_, err := query(ctx, conn, `INSERT INTO `+s.config.Schema.Slots()+` AS s (slot, system_identifier, timeline, settled)
		VALUES (`+text(s.config.Slot)+`, `+text(of.system)+`, `+strconv.Itoa(of.timeline)+`, '`+of.confirmed.String()+`')
		ON CONFLICT (slot) DO UPDATE SET system_identifier = EXCLUDED.system_identifier, timeline = EXCLUDED.timeline,
			settled = EXCLUDED.settled, settled_at = clock_timestamp()`)
	if err != nil {
		return fmt.Errorf("wal: write down what the slot is: %w", schema.Explain(err))
	}
	return nil
}

// settle writes down up to where all is settled. An error says that the stream has to end, too.
func (s *Source) settle(ctx context.Context, conn *pgconn.PgConn, upTo pglogrepl.LSN) error {
	row, err := query(ctx, conn, `UPDATE `+s.config.Schema.Slots()+` SET settled = '`+upTo.String()+`', settled_at = clock_timestamp()
		WHERE slot = `+text(s.config.Slot)+` AND suspended_at IS NULL RETURNING true`)
	if pgconn.Timeout(err) {
		return fmt.Errorf("%w: write down what is settled: %w", ErrSilent, err)
	}
	if err != nil {
		return fmt.Errorf("wal: write down what is settled: %w", err)
	}
	if row == nil {
		return fmt.Errorf("%w: %s", ErrSuspended, s.config.Slot)
	}
	return nil
}

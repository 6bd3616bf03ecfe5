package wal

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	plugin = "pgoutput"
	lost   = "lost"
)

// text is a string constant of any text in SQL.
func text(s string) string {
	return `pg_catalog.convert_from(pg_catalog.decode('` + hex.EncodeToString([]byte(s)) + `', 'hex'), 'UTF8')`
}

// slot is what the server says of it.
type slot struct {
	isOurs, isLost, isThere bool
	// confirmed is empty as long as the slot is being made.
	confirmed string
}

func (s *Source) look(ctx context.Context, conn *pgconn.PgConn) (slot, error) {
	row, err := query(ctx, conn, `SELECT coalesce(plugin, ''), coalesce(database = current_database(), false), coalesce(wal_status, ''),
		coalesce(confirmed_flush_lsn::text, '') FROM pg_replication_slots WHERE slot_name = `+text(s.config.Slot))
	if err != nil {
		return slot{}, fmt.Errorf("wal: look for the slot: %w", err)
	}
	if row == nil {
		return slot{}, nil
	}
	return slot{isThere: true, isOurs: row[0] == plugin && row[1] == "t", isLost: row[2] == lost, confirmed: row[3]}, nil
}

// requireMade says that the slot can be read. One that is being made cannot: whoever makes it may be gone, and
// the server waits for transactions all the same, which nobody is to wait for here.
func (s *Source) requireMade(ctx context.Context, conn *pgconn.PgConn) error {
	found, err := s.look(ctx, conn)
	if err != nil {
		return err
	}
	if !found.isThere || found.confirmed == "" {
		return fmt.Errorf("%w: %s", ErrNoSlot, s.config.Slot)
	}
	return nil
}

// prepareSlot returns when the slot is there, if it is not suspended.
func (s *Source) prepareSlot(ctx context.Context, conn *pgconn.PgConn, on server) error {
	for {
		known, err := s.readRecord(ctx, conn)
		if err != nil {
			return err
		}
		if known.isSuspended {
			return known.suspended(s.config.Slot)
		}
		if err := s.ensureSlot(ctx, conn, on); !errors.Is(err, errBeingMade) {
			return err
		}
		select {
		case <-time.After(slotRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errBeingMade says that somebody else makes the slot. He may be gone before it is made, and it with him.
var errBeingMade = errors.New("wal: the slot is being made")

// ensureSlot makes the slot if it is not there, or of no use.
func (s *Source) ensureSlot(ctx context.Context, conn *pgconn.PgConn, on server) error {
	found, err := s.look(ctx, conn)
	switch {
	case err != nil:
		return err
	case !found.isThere:
		return s.createSlot(ctx, conn, on)
	case !found.isOurs:
		return fmt.Errorf("%w: %s", ErrForeignSlot, s.config.Slot)
	case found.isLost:
		if err := s.suspend(ctx, conn, lostReason); err != nil {
			return err
		}
		return record{because: lostReason}.suspended(s.config.Slot)
	case found.confirmed == "":
		return errBeingMade
	case s.isStuck(found):
		s.logger.Error("The slot is of no use any more, it is made anew", nil, nil)
		if _, err := query(ctx, conn, `SELECT pg_drop_replication_slot(`+text(s.config.Slot)+`)`); err != nil {
			return fmt.Errorf("wal: drop the slot: %w", err)
		}
		s.stuckAt.Store(0)
		return s.createSlot(ctx, conn, on)
	}
	return nil
}

// createSlot waits for the transactions that write at this moment.
func (s *Source) createSlot(ctx context.Context, conn *pgconn.PgConn, on server) error {
	const (
		optionsSince  = 150000
		failoverSince = 170000
	)
	options := `NOEXPORT_SNAPSHOT`
	if on.version >= optionsSince {
		options = `(SNAPSHOT 'nothing')`
	}
	if on.version >= failoverSince {
		options = `(SNAPSHOT 'nothing', FAILOVER)`
	}
	s.logger.Info("A replication slot is made, which waits for transactions that write", nil)
	_, err := queryWithoutLimit(ctx, conn, `CREATE_REPLICATION_SLOT `+quote(s.config.Slot)+` LOGICAL `+plugin+` `+options)
	switch {
	case hasSQLState(err, duplicateObject):
		return errBeingMade
	case hasSQLState(err, configurationLimit):
		return fmt.Errorf("%w: %w", ErrNoFreeSlot, err)
	case err != nil:
		return fmt.Errorf("wal: create the slot: %w", err)
	}
	return nil
}

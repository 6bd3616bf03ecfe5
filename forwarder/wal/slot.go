package wal

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	plugin = "pgoutput"
	lost   = "lost"
)

// text is a string constant of any text in SQL.
func text(s string) string {
	return `convert_from(decode('` + hex.EncodeToString([]byte(s)) + `', 'hex'), 'UTF8')`
}

// ensureSlot makes the slot if it is not there, or of no use: since Postgres has given it up, which kept
// too much of the log, or since the publication was not there at some time. It returns the position that is
// confirmed.
func (s *Source) ensureSlot(ctx context.Context, conn *pgconn.PgConn, version int) (pglogrepl.LSN, error) {
	row, err := query(ctx, conn, `SELECT coalesce(plugin, ''), coalesce(database = current_database(), false), coalesce(wal_status, ''),
		coalesce(confirmed_flush_lsn, '0/0') FROM pg_replication_slots WHERE slot_name = `+text(s.config.Slot))
	switch {
	case err != nil:
		return 0, fmt.Errorf("wal: look for the slot: %w", err)
	case row == nil:
		return s.createSlot(ctx, conn, version)
	case row[0] != plugin || row[1] != "t":
		return 0, fmt.Errorf("%w: %s", ErrForeignSlot, s.config.Slot)
	case row[2] == lost || s.unreadable.Load():
		s.logger.Error("The slot is of no use any more, it is made anew", nil, watermill.LogFields{"slot": s.config.Slot, "wal_status": row[2]})
		if _, err := query(ctx, conn, `SELECT pg_drop_replication_slot(`+text(s.config.Slot)+`)`); err != nil {
			return 0, fmt.Errorf("wal: drop the slot: %w", err)
		}
		s.unreadable.Store(false)
		return s.createSlot(ctx, conn, version)
	}
	return parseLSN(row[3])
}

// createSlot waits for the transactions that write at this moment.
func (s *Source) createSlot(ctx context.Context, conn *pgconn.PgConn, version int) (pglogrepl.LSN, error) {
	const (
		optionsSince  = 150000
		failoverSince = 170000
	)
	options := `NOEXPORT_SNAPSHOT`
	if version >= optionsSince {
		options = `(SNAPSHOT 'nothing')`
	}
	if version >= failoverSince {
		options = `(SNAPSHOT 'nothing', FAILOVER)`
	}
	s.logger.Info("A replication slot is made, which waits for transactions that write", watermill.LogFields{"slot": s.config.Slot})
	row, err := queryWithoutLimit(ctx, conn, `CREATE_REPLICATION_SLOT `+s.config.Slot+` LOGICAL `+plugin+` `+options)
	switch {
	case hasSQLState(err, configurationLimit):
		return 0, fmt.Errorf("%w: %w", ErrNoFreeSlot, err)
	case err != nil:
		return 0, fmt.Errorf("wal: create the slot: %w", err)
	}
	const consistentPoint = 1
	return parseLSN(row[consistentPoint])
}

func parseLSN(text string) (pglogrepl.LSN, error) {
	position, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return 0, fmt.Errorf("wal: position %q: %w", text, err)
	}
	return position, nil
}

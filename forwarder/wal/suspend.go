package wal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-outbox/outbox/schema"
)

const (
	// lostReason is why a slot is suspended that Postgres keeps nothing for any more.
	lostReason = "Postgres has given the slot up, since it kept more than max_slot_wal_keep_size"
	// dropPatience bounds the wait for a reader that is told to go.
	dropPatience = 10 * time.Second
	dropRetry    = 50 * time.Millisecond
)

// suspend has the log read no more, by nobody, and drops the slot.
func (s *Source) suspend(ctx context.Context, conn *pgconn.PgConn, reason string) error {
	_, err := query(ctx, conn, `INSERT INTO `+s.config.Schema.Slots()+` AS s
			(slot, system_identifier, timeline, settled, suspended_at, suspended_because)
		VALUES (`+text(s.config.Slot)+`, '', 0, '0/0', clock_timestamp(), `+text(reason)+`)
		ON CONFLICT (slot) DO UPDATE SET suspended_at = EXCLUDED.suspended_at, suspended_because = EXCLUDED.suspended_because
		WHERE s.suspended_at IS NULL`)
	if err != nil {
		return fmt.Errorf("wal: suspend the slot: %w", schema.Explain(err))
	}
	return s.drop(ctx, conn)
}

// drop ends whoever reads the slot, by its process, and drops it.
func (s *Source) drop(ctx context.Context, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropPatience)
	defer cancel()
	where := ` FROM pg_replication_slots
		WHERE slot_name = ` + text(s.config.Slot) + ` AND database = current_database() AND plugin = '` + plugin + `'`
	for {
		_, err := query(ctx, conn, `SELECT pg_terminate_backend(active_pid)`+where+` AND active`)
		if err == nil {
			_, err = query(ctx, conn, `SELECT pg_drop_replication_slot(slot_name)`+where)
		}
		switch {
		case err == nil, hasSQLState(err, undefinedObject): // by another replica
			return nil
		case hasSQLState(err, insufficientPrivilege):
			return fmt.Errorf("%w: %w", ErrNoSignalRight, err)
		case !hasSQLState(err, objectInUse):
			return fmt.Errorf("wal: drop the slot: %w", err)
		}
		select {
		case <-time.After(dropRetry):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wal: drop the slot: %w", err), ctx.Err())
		}
	}
}

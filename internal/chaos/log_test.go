package chaos_test

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// readLog has forwarders take rows from a slot that is named as the database.
func (w *world) readLog() {
	w.t.Helper()
	parsed, err := url.Parse(w.db.DSN)
	require.NoError(w.t, err)
	w.config.Forwarder.Slot = w.db.SlotNamed(w.t, strings.TrimPrefix(parsed.Path, "/"))
}

// whileStreaming has faults begin when rows come from the log, which they must do again afterwards.
// Without that, the table alone would have stood the test.
func whileStreaming(faults faultsFunc) faultsFunc {
	return func(ctx context.Context, w *world, c *ledger.Control) error {
		if err := w.awaitStream(ctx); err != nil {
			return err
		}
		return errors.Join(faults(ctx, w, c), w.awaitStream(ctx))
	}
}

// awaitStream returns when the slot has confirmed what is written by now.
func (w *world) awaitStream(ctx context.Context) error {
	var end string
	if err := w.db.QueryRowContext(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
		return err
	}
	return await(ctx, "rows from the log", func() (isConfirmed bool, err error) {
		err = w.db.QueryRowContext(ctx, `SELECT coalesce((SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots
			WHERE slot_name = $1 AND active), false)`, w.config.Forwarder.Slot, end).Scan(&isConfirmed)
		return isConfirmed, err
	})
}

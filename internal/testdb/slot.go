package testdb

import (
	"context"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"
)

// Slot is the name of a replication slot and of a publication that a test may make, and that are
// gone after it: neither belongs to a schema.
func (db *DB) Slot(t *testing.T) string {
	t.Helper()
	return db.SlotNamed(t, db.Schema.Schema)
}

// SlotNamed is Slot with a name that the test has chosen.
func (db *DB) SlotNamed(t *testing.T, name string) string {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.Eventually(t, func() bool { // whoever reads it may still be about to go
			_, ending := db.ExecContext(ctx,
				`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, name)
			_, dropping := db.ExecContext(ctx,
				`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, name)
			return ending == nil && dropping == nil
		}, time.Minute, 10*time.Millisecond)
		_, err := db.ExecContext(ctx, `DROP PUBLICATION IF EXISTS `+pq.QuoteIdentifier(name))
		require.NoError(t, err)
	})
	return name
}

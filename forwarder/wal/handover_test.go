package wal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// From the table to the log and back, while nobody stops to write. A transaction is open for long when
// the slot is to be made: rows go on through the table until it ends.
func TestHandoverUnderLoad(t *testing.T) {
	t.Parallel()
	for name, isOverlapping := range map[string]bool{"one after the other": false, "side by side": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var b broker
			source := newSource(t, db)
			handOver := func(stop func(), from forwarder.Source) (stopNext func()) {
				if !isOverlapping {
					stop()
				}
				return start(t, db, &b, from)
			}
			p := startProducers(t, db, 4)
			stop := start(t, db, &b, nil)
			p.requireForwarded(t, &b, 200)

			long := begin(t, db)
			insertKeyed(t, db, long, "orders", "long", ids("long", 3)...)
			next := handOver(stop, source)
			p.requireForwarded(t, &b, 500)
			stop()
			p.requireForwarded(t, &b, 500)
			require.Zero(t, count(t, db, `pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL AND slot_name = '`+db.Schema.Schema+`'`))
			require.NoError(t, long.Commit())
			requireAllConfirmed(t, db)
			p.requireForwarded(t, &b, 500)

			for range 2 {
				stop, next = next, handOver(next, nil)
				p.requireForwarded(t, &b, 500)
				stop()
				p.requireForwarded(t, &b, 500)
				stop, next = next, handOver(next, source)
				p.requireForwarded(t, &b, 500)
				stop()
				requireAllConfirmed(t, db)
				p.requireForwarded(t, &b, 500)
			}
			p.requireOnceAndInOrder(t, db, &b)
			require.Equal(t, ids("long", 3), b.of("long"))
		})
	}
}

package pgbouncertest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// forwardFromTheLog has everything go through the pooler but what reads the log, and guards the slot.
func forwardFromTheLog(t *testing.T, db database, m mode) {
	t.Helper()
	slot := (&testdb.DB{DB: db.direct}).SlotNamed(t, db.name)
	source, err := wal.New(wal.Config{
		Schema: db.schema, ReplicationDSN: db.directDSN, Slot: slot, Publication: slot, AcceptUnboundedWAL: true,
	}, errorLogger{t})
	require.NoError(t, err)
	publishAndForward(t, db, m, forwarder.Config{Ordering: forwarder.PerKey, Settlement: forwarder.Delete, Source: source})
	eventually(t, func() bool {
		return db.count(t, `pg_catalog.pg_replication_slots`, `active AND slot_name = '`+slot+`'`) == 1
	}, "the log is not read")
}

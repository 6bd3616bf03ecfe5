package forwarder_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// Without the settings there are no lanes: rows would wait, and nobody would say why.
func TestLostSettingsAreReported(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	b := runWithLog(t, db, forwarder.Config{})
	<-b.forwarder.Running()
	execute(t, db, `TRUNCATE `+db.Schema.Settings())
	insert(t, db, "orders", "a", "a-1")
	eventually(t, func() bool { return len(b.log.errors()) > 0 })
	require.Contains(t, b.log.errors()[0], "Tables of the outbox are not as they should be, messages stay in the outbox: ")
	require.Contains(t, b.log.errors()[0], db.Schema.Settings()+" is empty")
	require.Empty(t, b.recorder.confirmed())

	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	requireDrained(t, db)
	require.Equal(t, []string{"a-1"}, b.recorder.confirmed())
}

func TestRunFailsWithoutSettings(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	execute(t, db, `TRUNCATE `+db.Schema.Settings())
	f, err := forwarder.New(db.DB, (&recorder{}).publisher(), forwarder.Config{Schema: db.Schema}, nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- f.Run(t.Context()) }()
	select {
	case err := <-done:
		require.ErrorIs(t, err, schema.ErrNotMigrated)
	case <-time.After(patience):
		require.Fail(t, "the forwarder waits")
	}
}

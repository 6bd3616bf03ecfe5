package testdb

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/schema"
)

// StartStandby starts a server of the test's own with migrated tables, and makes a standby
// of it, as a primary becomes in a failover. It returns its DSN.
func StartStandby(t *testing.T, tables schema.Postgres) (dsn string) {
	t.Helper()
	server := StartServer(t, tables)
	server.Stop(t)
	require.NoError(t, os.WriteFile(filepath.Join(server.data(t), "standby.signal"), nil, 0o644))
	server.Start(t)
	return server.DSN
}

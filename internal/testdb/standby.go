package testdb

import (
	"context"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/schema"
)

// StartStandby starts a server of the test's own with migrated tables, and makes a standby
// of it, as a primary becomes in a failover. It returns its DSN.
func StartStandby(t *testing.T, tables schema.Postgres) (dsn string) {
	t.Helper()
	// Not t.TempDir: its files belong to the server's user while that still ends.
	folder, err := os.MkdirTemp("", "testdb-") //nolint:usetesting // as said
	require.NoError(t, err)
	require.NoError(t, os.Chmod(folder, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	port := freePort(t)
	t.Cleanup(func() { runScript(t, folder, port, "stop") })
	runScript(t, folder, port, "start")

	address := fmt.Sprintf("postgres://outbox:outbox@127.0.0.1:%d/outbox?sslmode=disable", port)
	db := Open(t, "postgres", WithSetting(t, address, "search_path", noSchema))
	_, err = db.ExecContext(t.Context(), `CREATE SCHEMA `+tables.Schema)
	require.NoError(t, err)
	require.NoError(t, tables.Migrate(t.Context(), db))
	require.NoError(t, db.Close())

	runScript(t, folder, port, "stop")
	data, err := filepath.Glob(filepath.Join(folder, "postgres", "data-*"))
	require.NoError(t, err)
	require.Len(t, data, 1)
	require.NoError(t, os.WriteFile(filepath.Join(data[0], "standby.signal"), nil, 0o644))
	runScript(t, folder, port, "start")
	return WithSetting(t, address, "search_path", noSchema)
}

func runScript(t *testing.T, folder string, port int, verb string) {
	t.Helper()
	const patience = 2 * time.Minute // on a busy machine
	_, file, _, ok := runtime.Caller(0)
	require.True(t, ok)
	script := filepath.Join(filepath.Dir(file), "..", "services", "postgres.sh")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	command := osexec.CommandContext(ctx, script, verb)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "POSTGRES_DSN=") {
			command.Env = append(command.Env, variable)
		}
	}
	command.Env = append(command.Env, "SERVICES_DIR="+folder, fmt.Sprintf("SERVICES_POSTGRES_PORT=%d", port))
	output, err := command.CombinedOutput()
	require.NoErrorf(t, err, "postgres.sh %s: %s", verb, output)
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	return number
}

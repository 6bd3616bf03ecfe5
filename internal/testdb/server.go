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

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/schema"
)

// Server is a test's own server, with migrated tables. It is the installed one, whatever the version
// of the server for the other tests.
type Server struct {
	*DB

	folder string
	port   int
}

// StartServer starts a server that is gone after the test.
func StartServer(t *testing.T, tables schema.Postgres) *Server {
	t.Helper()
	// Not t.TempDir: its files belong to the server's user while that still ends.
	folder, err := os.MkdirTemp("", "testdb-") //nolint:usetesting // as said
	require.NoError(t, err)
	require.NoError(t, os.Chmod(folder, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	s := &Server{folder: folder, port: freePort(t)}
	t.Cleanup(func() { s.run(t, "stop") })
	s.Start(t)

	address := fmt.Sprintf("postgres://outbox:outbox@127.0.0.1:%d/outbox?sslmode=disable", s.port)
	s.DB = &DB{Schema: tables, DSN: WithSetting(t, address, "search_path", noSchema)}
	s.DB.DB = Open(t, "postgres", s.DSN)
	exec(t, s.DB.DB, `CREATE SCHEMA `+pq.QuoteIdentifier(tables.Schema))
	require.NoError(t, tables.Migrate(t.Context(), s.DB.DB))
	return s
}

// Start starts it again.
func (s *Server) Start(t *testing.T) {
	t.Helper()
	s.run(t, "start")
}

// Stop stops it, by force if it is not gone after a while.
func (s *Server) Stop(t *testing.T) {
	t.Helper()
	s.run(t, "stop")
}

// Set changes settings of the server, and restarts it.
func (s *Server) Set(t *testing.T, settings ...string) {
	t.Helper()
	for _, setting := range settings {
		exec(t, s.DB.DB, `ALTER SYSTEM SET `+setting)
	}
	s.Stop(t)
	s.Start(t)
}

// Shutdown asks it to stop as service managers do, and waits for that; nobody forces it.
func (s *Server) Shutdown(t *testing.T) {
	t.Helper()
	file := filepath.Join(s.data(t), "postmaster.pid")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(first)
	require.NoError(t, err)
	process, err := os.FindProcess(pid)
	require.NoError(t, err)
	require.NoError(t, process.Signal(os.Interrupt)) // a fast shutdown (Postgres manual, "Shutting Down the Server")
	const patience = 2 * time.Minute
	require.Eventually(t, func() bool {
		_, err := os.Stat(file)
		return os.IsNotExist(err)
	}, patience, 10*time.Millisecond)
}

func (s *Server) data(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.folder, "postgres", "data-*"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

func (s *Server) run(t *testing.T, verb string) {
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
	command.Env = append(command.Env, "SERVICES_DIR="+s.folder, fmt.Sprintf("SERVICES_POSTGRES_PORT=%d", s.port))
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

package embedded_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

const (
	// wait bounds what must come true soon; a loaded machine may be slow.
	wait = time.Minute
	poll = 20 * time.Millisecond
)

func start(t *testing.T, cfg embedded.PostgresConfig) *embedded.Postgres {
	t.Helper()

	pg, err := embedded.StartPostgres(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pg.Close()) })

	return pg
}

// server is what the database itself says about the server behind a DSN.
type server struct {
	address string
	folder  string
	pid     int
}

func inspect(t *testing.T, dsn string) server {
	t.Helper()

	u, err := url.Parse(dsn)
	require.NoError(t, err)

	found := server{address: u.Host}

	var dataDir, pidFile string

	query(t, dsn, `SELECT current_setting('data_directory'), pg_read_file('postmaster.pid')`, &dataDir, &pidFile)

	line, _, _ := strings.Cut(pidFile, "\n")

	found.pid, err = strconv.Atoi(line)
	require.NoError(t, err)

	found.folder = filepath.Dir(dataDir)
	require.DirExists(t, found.folder)

	return found
}

func query(t *testing.T, dsn, statement string, into ...any) {
	t.Helper()

	db, err := sql.Open("postgres", dsn)
	require.NoError(t, err)

	defer func() { require.NoError(t, db.Close()) }()

	require.NoError(t, db.QueryRowContext(t.Context(), statement).Scan(into...))
}

// requireGone asserts that nothing of a server is left, or is soon.
func requireGone(t *testing.T, gone server) {
	t.Helper()

	require.Eventually(t, func() bool { return !answers(t, gone.address) }, wait, poll, "the port still answers")
	require.Eventually(t, func() bool { return !alive(gone.pid) }, wait, poll, "the postmaster still runs")
	require.Eventually(t, func() bool {
		_, err := os.Stat(gone.folder)

		return errors.Is(err, os.ErrNotExist)
	}, wait, poll, "the folder is still there")
}

func answers(t *testing.T, address string) bool {
	t.Helper()

	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return false
	}

	return conn.Close() == nil
}

// alive does not count a zombie, which waits for pid 1 alone.
func alive(pid int) bool {
	if stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")); err == nil {
		if _, state, found := strings.Cut(string(stat), ") "); found {
			return !strings.HasPrefix(state, "Z")
		}
	}

	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func TestPostgres(t *testing.T) {
	t.Parallel()

	pg := start(t, embedded.PostgresConfig{})

	for _, driver := range []string{"postgres", "pgx"} {
		db, err := sql.Open(driver, pg.DSN())
		require.NoError(t, err)

		settings := map[string]string{
			"server_encoding":         "UTF8",
			"client_encoding":         "UTF8",
			"wal_level":               "logical",
			"fsync":                   "off",
			"synchronous_commit":      "on",
			"max_connections":         "300",
			"listen_addresses":        "127.0.0.1",
			"unix_socket_directories": "",
		}
		for name, want := range settings {
			var got string

			require.NoError(t, db.QueryRowContext(t.Context(), `SELECT current_setting($1)`, name).Scan(&got))
			require.Equal(t, want, got, "%s through %s", name, driver)
		}

		var text string

		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT $1::text`, "grüße, 世界").Scan(&text))
		require.Equal(t, "grüße, 世界", text)
		require.NoError(t, db.Close())
	}

	query(t, pg.DSN(), `SELECT pg_create_logical_replication_slot('s', 'pgoutput')::text`, new(string))
}

func TestPostgresCloseLeavesNothing(t *testing.T) {
	t.Parallel()

	pg := start(t, embedded.PostgresConfig{})
	found := inspect(t, pg.DSN())

	// A client that stays connected does not hold it up.
	db, err := sql.Open("postgres", pg.DSN())
	require.NoError(t, err)

	defer db.Close()

	conn, err := db.Conn(t.Context())
	require.NoError(t, err)

	defer conn.Close()

	require.NoError(t, pg.Close())
	require.NoDirExists(t, found.folder)
	require.False(t, answers(t, found.address))
	requireGone(t, found)

	require.NoError(t, pg.Close(), "again")
}

func TestPostgresEndsWithItsParent(t *testing.T) {
	t.Parallel()

	for name, end := range map[string]func(rolePlayer) error{
		"killed hard":          func(parent rolePlayer) error { return parent.Process.Kill() },
		"terminated":           func(parent rolePlayer) error { return parent.Process.Signal(syscall.SIGTERM) },
		"exited without Close": func(parent rolePlayer) error { return parent.stdin.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			parent := startRole(t, roleParent)

			report := parent.report(t)
			require.Empty(t, report.Error)

			found := inspect(t, report.DSN)

			require.NoError(t, end(parent))
			requireGone(t, found)
		})
	}
}

// A parent that is killed while it starts a server has not read a report, nor
// will it.
//
//nolint:paralleltest // openTempFolder sets a variable.
func TestPostgresParentKilledDuringStart(t *testing.T) {
	temp := openTempFolder(t)

	parent := startRole(t, roleParent)

	require.Eventually(t, func() bool { return initialising(t, temp) }, wait, time.Millisecond)
	require.NoError(t, parent.Process.Kill())
	require.Eventually(t, func() bool { return isEmpty(t, temp) }, wait, poll)
}

// openTempFolder makes a temp folder of the test's own that the server's user
// can use.
func openTempFolder(t *testing.T) string {
	t.Helper()

	temp := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(temp), 0o755))
	require.NoError(t, os.Chmod(temp, 0o777))
	t.Setenv("TMPDIR", temp)

	return temp
}

// initialising tells that initdb has begun to write below a temp folder.
func initialising(t *testing.T, temp string) bool {
	t.Helper()

	found, err := filepath.Glob(filepath.Join(temp, "*", "data", "*"))

	return assert.NoError(t, err) && len(found) > 0
}

func isEmpty(t *testing.T, dir string) bool {
	t.Helper()

	entries, err := os.ReadDir(dir)

	return assert.NoError(t, err) && len(entries) == 0
}

// A child that is killed cannot clean up; its parent does.
func TestPostgresChildKilled(t *testing.T) {
	t.Parallel()

	if runtime.GOOS != "linux" {
		t.Skip("finds the child in /proc")
	}

	pg, err := embedded.StartPostgres(t.Context(), embedded.PostgresConfig{})
	require.NoError(t, err)

	found := inspect(t, pg.DSN())
	require.NoError(t, syscall.Kill(keeperOf(t, found.folder), syscall.SIGKILL))

	require.ErrorContains(t, pg.Close(), "signal: killed")
	requireGone(t, found)
}

// keeperOf is the process of this program that works in a server's folder.
func keeperOf(t *testing.T, folder string) int {
	t.Helper()

	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)

	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && cwd == folder {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			require.NoError(t, err)

			return pid
		}
	}

	require.FailNow(t, "no process works in "+folder)

	return 0
}

func TestPostgresTwoAtOnce(t *testing.T) {
	t.Parallel()

	type result struct {
		pg  *embedded.Postgres
		err error
	}

	results := make(chan result)

	for range 2 {
		go func() {
			pg, err := embedded.StartPostgres(t.Context(), embedded.PostgresConfig{})
			results <- result{pg, err}
		}()
	}

	one, two := <-results, <-results
	require.NoError(t, one.err)
	require.NoError(t, two.err)
	require.NotEqual(t, one.pg.DSN(), two.pg.DSN())

	query(t, one.pg.DSN(), `SELECT 1`, new(int))
	require.NoError(t, one.pg.Close())

	query(t, two.pg.DSN(), `SELECT 1`, new(int))
	require.NoError(t, two.pg.Close())
}

func TestPostgresPort(t *testing.T) {
	t.Parallel()

	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)

	_, text, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)

	port, err := strconv.Atoi(text)
	require.NoError(t, err)

	_, err = embedded.StartPostgres(t.Context(), embedded.PostgresConfig{Port: port})
	require.ErrorContains(t, err, "address already in use")

	require.NoError(t, taken.Close())

	pg := start(t, embedded.PostgresConfig{Port: port})
	require.Equal(t, taken.Addr().String(), inspect(t, pg.DSN()).address)
}

func TestPostgresConfigRefused(t *testing.T) {
	t.Parallel()

	for want, cfg := range map[string]embedded.PostgresConfig{
		"port -1":    {Port: -1},
		"contradict": {BinariesDir: "/usr/bin", Version: "17.5.0"},
		"initdb":     {BinariesDir: t.TempDir()},
	} {
		_, err := embedded.StartPostgres(t.Context(), cfg)
		require.ErrorContains(t, err, want)
	}
}

//nolint:paralleltest // openTempFolder sets a variable.
func TestPostgresStartCancelled(t *testing.T) {
	temp := openTempFolder(t)

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")

	var watching sync.WaitGroup
	defer watching.Wait()

	watching.Go(func() {
		defer cancel(cause)

		assert.Eventually(t, func() bool { return initialising(t, temp) }, wait, time.Millisecond)
	})

	_, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{})
	require.ErrorIs(t, err, cause)
	require.True(t, isEmpty(t, temp), "something is left")

	_, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{})
	require.ErrorIs(t, err, context.Canceled)
}

// The server's user could not enter such a temp folder.
func TestPostgresPrivateTempFolder(t *testing.T) {
	temp := t.TempDir()
	require.NoError(t, os.Chmod(temp, 0o700))
	t.Setenv("TMPDIR", temp)

	pg := start(t, embedded.PostgresConfig{})
	query(t, pg.DSN(), `SELECT 1`, new(int))
}

// As root, the server's user must execute what this process has written.
func TestPostgresStrictUmask(t *testing.T) {
	t.Parallel()

	report := startRole(t, roleStrict).report(t)
	require.Empty(t, report.Error)
	query(t, report.DSN, `SELECT 1`, new(int))
}

// Variables that change what Postgres' programs do must not reach them, nor
// may secrets of this process.
func TestPostgresEnvironment(t *testing.T) {
	t.Setenv("PGPORT", "1")
	t.Setenv("PGDATA", "/nonexistent")
	t.Setenv("PGUSER", "nobody-here")

	pg, err := embedded.StartPostgres(t.Context(), embedded.PostgresConfig{})
	require.NoError(t, err)
	require.NoError(t, pg.Close())
}

func TestPostgresWithoutHook(t *testing.T) {
	t.Parallel()

	report := startRole(t, roleNoHook).report(t)
	require.True(t, report.NoHook, report.Error)
	require.Contains(t, report.Error, "RunChildIfAsked")
}

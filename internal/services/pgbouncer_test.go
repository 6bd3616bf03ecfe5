package services_test

import (
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/lib/pq" // the driver "postgres"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// One script, run as 'make services' does: it starts, finds what it started, starts
// anew where another Postgres is wanted, and leaves nothing behind.
func TestPgbouncer(t *testing.T) {
	t.Parallel()
	c := newClone(t, "clone")
	port := freePort(t)
	script := func(dsn, verb string) string {
		return c.mustRun(t, []string{
			"POSTGRES_DSN=" + dsn, "PGBOUNCER_DSN=", fmt.Sprintf("SERVICES_PGBOUNCER_PORT=%d", port), "SERVICES_DIR=",
		}, "bash", "internal/services/pgbouncer.sh", verb)
	}
	dsn := withoutSetting(t, testdb.DSN(t), "search_path")
	t.Cleanup(func() { c.stop(t, port) })

	require.Contains(t, script(dsn, "start"), "started at")
	require.Equal(t, "outbox", databaseBehind(t, port, "outbox"))
	require.Equal(t, "postgres", databaseBehind(t, port, "postgres"))
	require.Contains(t, script(dsn, "start"), "answers at")

	other, err := url.Parse(dsn)
	require.NoError(t, err)
	other.Path = "/postgres"
	said := script(other.String(), "start")
	require.Contains(t, said, "which has other settings")
	require.Contains(t, said, "started at")
	require.Equal(t, "postgres", databaseBehind(t, port, "outbox"))

	require.Contains(t, script(dsn, "stop"), "stopped process")
	left, err := filepath.Glob(filepath.Join(c.path, ".services/pgbouncer/*.ini*"))
	require.NoError(t, err)
	require.Empty(t, left, "a password is in them")
	require.Empty(t, script(dsn, "stop"))
}

// stop is for a test that has failed in between.
func (c clone) stop(t *testing.T, port int) {
	t.Helper()
	variables := []string{fmt.Sprintf("SERVICES_PGBOUNCER_PORT=%d", port), "SERVICES_DIR="}
	c.mustRun(t, variables, "bash", "internal/services/pgbouncer.sh", "stop")
	state, err := filepath.EvalSymlinks(filepath.Join(c.path, ".services"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(state))
}

func databaseBehind(t *testing.T, port int, name string) (behind string) {
	t.Helper()
	db, err := sql.Open("postgres", fmt.Sprintf("postgres://anybody@127.0.0.1:%d/%s?sslmode=disable", port, name))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT pg_catalog.current_database()`).Scan(&behind))
	return behind
}

func withoutSetting(t *testing.T, dsn, name string) string {
	t.Helper()
	parsed, err := url.Parse(dsn)
	require.NoError(t, err)
	query := parsed.Query()
	query.Del(name)
	parsed.RawQuery = query.Encode()
	return parsed.String()
}

func freePort(t *testing.T) int {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	address, ok := listener.Addr().(*net.TCPAddr)
	require.True(t, ok)
	return address.Port
}

func TestPgbouncerTakesTheAddressOfPostgresApart(t *testing.T) {
	t.Parallel()
	c := newClone(t, "clone")
	c.withoutCommand(t, "pgbouncer.sh", "")
	for dsn, want := range map[string]string{
		"postgres://outbox:outbox@127.0.0.1:54329/outbox?sslmode=disable": "host='127.0.0.1' port='54329' user='outbox' password='outbox' |outbox|disable",
		"postgresql://o%27u:p%5C%25w%40@db.internal/out%20box":            `host='db.internal' port='5432' user='o''u' password='p\%w@' |out box|prefer`,
		"postgres://u:@[::1]:99/d?a=b&sslmode=require&c=d":                "host='::1' port='99' user='u' password='' |d|require",
		"postgres://u@host/d":                        "refused",
		"postgres://u:p@host/d?sslmode=verify-full":  "refused",
		"postgres://u:p@host/":                       "refused",
		"host=127.0.0.1 user=outbox password=outbox": "refused",
	} {
		said := c.mustRun(t, []string{"DSN=" + dsn}, "bash", "-c", `source internal/services/pgbouncer.sh
			if take_apart "$DSN"; then echo "$target|$database|$sslmode"; else echo refused; fi`)
		require.Equal(t, want+"\n", said, dsn)
	}
}

// withoutCommand makes a script end with other words than the call of its command.
func (c clone) withoutCommand(t *testing.T, script, instead string) {
	t.Helper()
	path := filepath.Join(c.path, "internal/services", script)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	const call = `run_command "$@"`
	require.Equal(t, 1, strings.Count(string(text), call))
	c.write(t, path, strings.Replace(string(text), call, instead, 1))
}

// Whose servers run in Docker may have no psql.
func TestServersAreKnownWithoutPsql(t *testing.T) {
	t.Parallel()
	for script, portVariable := range map[string]string{"postgres.sh": "SERVICES_POSTGRES_PORT", "pgbouncer.sh": "SERVICES_PGBOUNCER_PORT"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			c := newClone(t, "clone")
			c.withoutCommand(t, script, `find_psql() { psql=; return 1; }; run_command "$@"`)
			start := func(port string) (stdout, stderr string, err error) {
				return c.run(t, []string{
					"POSTGRES_DSN=", "PGBOUNCER_DSN=", portVariable + "=" + port,
					"SERVICES_TIMEOUT=5", "SERVICES_DIR=" + filepath.Join(c.path, "state"),
				}, "bash", "internal/services/"+script, "start")
			}
			// A server of another kind is not taken for it.
			_, stderr, err := start(silentServer(t))
			require.Error(t, err)
			require.Contains(t, stderr, "is taken, and not by our server")

			port := map[string]string{"postgres.sh": "54329", "pgbouncer.sh": "26432"}[script]
			conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
			if err != nil {
				t.Skip("it would start one at the default address")
			}
			require.NoError(t, conn.Close())
			said, stderr, err := start("")
			require.NoError(t, err, stderr)
			require.Contains(t, said, "answers at 127.0.0.1:"+port)
		})
	}
}

// silentServer takes connections and says nothing.
func silentServer(t *testing.T) (port string) {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	_, port, err = net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	return port
}

package embedded_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

func TestNewestFirst(t *testing.T) {
	t.Parallel()

	root := t.TempDir()

	var want []string

	for _, name := range []string{"17/bin", "postgresql@15/bin", "9.6/bin", "9/bin"} {
		want = append(want, filepath.Join(root, name))
		require.NoError(t, os.MkdirAll(filepath.Join(root, name), 0o755))
	}

	got := embedded.NewestFirst([]string{filepath.Join(root, "postgresql@*", "bin"), filepath.Join(root, "[0-9]*", "bin")})
	require.Equal(t, want, got)
}

// The folder may hold links to the programs, as /usr/local/bin often does.
func TestPostgresBinariesDir(t *testing.T) {
	t.Parallel()

	installed, err := embedded.Installed(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, installed, `an installed server is needed: "make services" installs one, or says how`)

	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))

	for _, name := range []string{"initdb", "pg_ctl", "postgres"} {
		require.NoError(t, os.Symlink(filepath.Join(installed, name), filepath.Join(dir, name)))
	}

	pg := start(t, embedded.PostgresConfig{BinariesDir: dir})
	query(t, pg.DSN(), `SELECT 1`, new(int))
	require.NoError(t, pg.Close())

	// A folder that the server's user cannot enter is refused.
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chmod(dir, 0o700))

		_, err = embedded.StartPostgres(t.Context(), embedded.PostgresConfig{BinariesDir: dir})
		require.ErrorContains(t, err, "not permitted")
	}
}

package embedded_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

// fetched is a release that is fetched whatever is installed.
const fetched = "17.5.0"

// Without an answer from the repository itself, mvn brings the archive. Needs
// mvn and a Maven repository that it can reach.
func TestPostgresFetchedByMaven(t *testing.T) {
	t.Parallel()

	_, err := exec.LookPath("mvn")
	require.NoError(t, err, `mvn is needed: "make services" installs it, or says how`)

	cfg := embedded.PostgresConfig{
		Version:       fetched,
		RepositoryURL: "http://" + deadAddress(t),
		CacheDir:      t.TempDir(),
	}

	requireVersion(t, cfg)

	archive, err := os.ReadFile(onlyFile(t, cfg.CacheDir))
	require.NoError(t, err)

	// The same, from a repository that answers.
	t.Run("straight", func(t *testing.T) {
		t.Parallel()

		checksum := sha256.Sum256(archive)

		straight := cfg
		straight.RepositoryURL = serveArchive(t, archive, hex.EncodeToString(checksum[:]))
		straight.CacheDir = t.TempDir()

		requireVersion(t, straight)

		stored, err := os.ReadFile(onlyFile(t, straight.CacheDir))
		require.NoError(t, err)
		require.True(t, bytes.Equal(archive, stored))
	})

	// What is in the cache is not asked for again.
	t.Run("from the cache", func(t *testing.T) {
		t.Parallel()

		cached := cfg
		cached.CacheDir = t.TempDir()
		name := filepath.Join(cached.CacheDir, filepath.Base(onlyFile(t, cfg.CacheDir)))
		require.NoError(t, os.WriteFile(name, []byte("not a zip file"), 0o600))

		_, err := embedded.StartPostgres(t.Context(), cached)
		require.ErrorContains(t, err, "not a valid zip file")
	})
}

// The default: straight from Maven Central, or with mvn's help where there is no way.
func TestPostgresFetched(t *testing.T) {
	t.Parallel()

	requireVersion(t, embedded.PostgresConfig{Version: fetched, CacheDir: t.TempDir()})
}

// An archive with another checksum than the repository's is never kept. Not
// parallel: no mvn may help out.
func TestPostgresFetchedWrong(t *testing.T) {
	t.Setenv("PATH", t.TempDir())

	cfg := embedded.PostgresConfig{
		Version:       fetched,
		RepositoryURL: serveArchive(t, []byte("one thing"), "another"),
		CacheDir:      t.TempDir(),
	}

	_, err := embedded.StartPostgres(t.Context(), cfg)
	require.ErrorContains(t, err, "SHA-256")
	require.ErrorContains(t, err, "no mvn")

	left, err := os.ReadDir(cfg.CacheDir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// serveArchive is a repository that has the same answer to every question.
func serveArchive(t *testing.T, archive []byte, checksum string) string {
	t.Helper()

	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		content := archive
		if path.Ext(req.URL.Path) == ".sha256" {
			content = []byte(checksum)
		}

		_, err := w.Write(content)
		assert.NoError(t, err)
	}))
	t.Cleanup(upstream.Close)

	return upstream.URL
}

func onlyFile(t *testing.T, dir string) string {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Len(t, files, 1)

	return files[0]
}

func requireVersion(t *testing.T, cfg embedded.PostgresConfig) {
	t.Helper()

	pg := start(t, cfg)
	found := inspect(t, pg.DSN())

	var version, encoding string

	query(t, pg.DSN(), `SELECT current_setting('server_version'), current_setting('server_encoding')`,
		&version, &encoding)
	require.Contains(t, version, "17.5")
	require.Equal(t, "UTF8", encoding)

	require.NoError(t, pg.Close())
	requireGone(t, found)
}

func TestPostgresFetchOfUnknownVersion(t *testing.T) {
	t.Parallel()

	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()

	_, err := embedded.StartPostgres(t.Context(), embedded.PostgresConfig{
		Version: "0.0.1", RepositoryURL: upstream.URL, CacheDir: t.TempDir(),
	})
	require.ErrorContains(t, err, "404 Not Found")
	require.ErrorContains(t, err, "0.0.1")
}

// A transfer that stands still ends with the context.
func TestPostgresFetchCancelled(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")

	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		cancel(cause)
		<-req.Context().Done()
	}))
	defer upstream.Close()

	cacheDir := t.TempDir()

	_, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{
		Version: fetched, RepositoryURL: upstream.URL, CacheDir: cacheDir,
	})
	require.ErrorIs(t, err, cause)

	left, err := filepath.Glob(filepath.Join(cacheDir, "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// deadAddress is a loopback address that nobody listens on.
func deadAddress(t *testing.T) string {
	t.Helper()

	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())

	return l.Addr().String()
}

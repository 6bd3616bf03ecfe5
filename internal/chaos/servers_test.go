package chaos_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scriptTimeout is well beyond what a server takes to start on a busy machine.
const scriptTimeout = 3 * time.Minute

// servers are the suite's own, since it restarts them: other tests run on those of
// "make services".
type servers struct {
	folder    string
	firstPort int
	// kafkaProxies are the ports that Kafka advertises, for forwarders and for consumers.
	kafkaProxies []int
	keeper       *keeper
}

// What of the ports is whose.
const (
	postgresPort  = 0
	pgbouncerPort = 1
	rabbitmqPort  = 2 // and three more
	kafkaPort     = 6 // and five more
	kafkaProxied  = 12
	portsInAll    = kafkaProxied + 2*lanesInAll
)

func (s *servers) address(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.firstPort+port))
}

func (s *servers) postgresDSN() string {
	return "postgres://outbox:outbox@" + s.address(postgresPort) + "/outbox?sslmode=disable"
}

func (s *servers) amqpURI() string { return "amqp://outbox:outbox@" + s.address(rabbitmqPort) + "/" }

// startServers starts them side by side. They are stopped after the test.
func startServers(t *testing.T, kafkaProxies ...int) *servers {
	t.Helper()
	// Not t.TempDir: its files belong to the servers' users while these still end.
	folder, err := os.MkdirTemp("", "chaos-") //nolint:usetesting // as said
	require.NoError(t, err)
	require.NoError(t, os.Chmod(folder, 0o755))
	s := &servers{folder: folder, firstPort: freePorts(t), kafkaProxies: kafkaProxies}
	s.keeper, err = startKeeper(s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.keeper.end()) })
	s.lendJars(t)
	var (
		started sync.WaitGroup
		errs    = make([]error, 3)
	)
	started.Go(func() { errs[0] = s.start(t.Context(), "rabbitmq.sh") })
	started.Go(func() { errs[1] = s.start(t.Context(), "kafka.sh") })
	started.Go(func() {
		errs[2] = s.start(t.Context(), "postgres.sh")
		if errs[2] == nil {
			errs[2] = s.start(t.Context(), "pgbouncer.sh") // asks Postgres who it is
		}
	})
	started.Wait()
	require.NoError(t, errors.Join(errs...))
	return s
}

func (s *servers) start(ctx context.Context, script string) error { return s.run(ctx, script, "start") }

func (s *servers) stop(ctx context.Context, script string) error { return s.run(ctx, script, "stop") }

// kill ends a server as a power cut would, but for what its machine has in memory.
func (s *servers) kill(ctx context.Context, script string) error {
	return s.signal(ctx, script, syscall.SIGKILL)
}

// signal returns when the process is gone.
func (s *servers) signal(ctx context.Context, script string, signal syscall.Signal) error {
	pid, err := s.pid(script)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	return await(ctx, script+" ends", func() (bool, error) {
		return isGone(pid), nil
	})
}

func (s *servers) pid(script string) (int, error) {
	pattern := filepath.Join(s.folder, "services", strings.TrimSuffix(script, ".sh"), "pid")
	if script == "postgres.sh" {
		pattern = filepath.Join(s.folder, "services", "postgres", "data-*", "postmaster.pid")
	}
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		return 0, fmt.Errorf("%s: %d pid files at %s", script, len(found), pattern)
	}
	file, err := os.Open(found[0])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", script, err)
	}
	defer file.Close()
	line, err := bufio.NewReader(file).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("%s: %w", script, err)
	}
	return strconv.Atoi(strings.TrimSpace(line))
}

// rabbitmqctl speaks to the node.
func (s *servers) rabbitmqctl(ctx context.Context, arguments ...string) error {
	return s.run(ctx, "rabbitmqctl.sh", arguments...)
}

func (s *servers) run(ctx context.Context, script string, arguments ...string) error {
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(repository(), "internal", "services", script), arguments...)
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case slices.Contains([]string{"POSTGRES_DSN", "KAFKA_BROKERS", "AMQP_URI", "PGBOUNCER_DSN"}, name):
		case strings.HasPrefix(name, "SERVICES_"):
		default:
			command.Env = append(command.Env, variable)
		}
	}
	var proxies []string
	for _, port := range s.kafkaProxies {
		proxies = append(proxies, strconv.Itoa(port))
	}
	command.Env = append(command.Env,
		"SERVICES_DIR="+filepath.Join(s.folder, "services"),
		fmt.Sprintf("SERVICES_POSTGRES_PORT=%d", s.firstPort+postgresPort),
		fmt.Sprintf("SERVICES_PGBOUNCER_PORT=%d", s.firstPort+pgbouncerPort),
		fmt.Sprintf("SERVICES_RABBITMQ_PORT=%d", s.firstPort+rabbitmqPort),
		fmt.Sprintf("SERVICES_KAFKA_PORT=%d", s.firstPort+kafkaPort),
		"SERVICES_TIMEOUT=150",       // of a Kafka that starts while writers and forwarders are busy
		"SERVICES_PGBOUNCER_POOL=16", // a replica that is frozen holds some of them
		"SERVICES_KAFKA_PROXIES="+strings.Join(proxies, " "),
	)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", script, arguments, err, output)
	}
	return nil
}

// lendJars: those that "make services" has fetched are not fetched again.
func (s *servers) lendJars(t *testing.T) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(repository(), ".services", "kafka", "jars-*"))
	require.NoError(t, err)
	home := filepath.Join(s.folder, "services", "kafka")
	require.NoError(t, os.MkdirAll(home, 0o755))
	for _, jars := range found {
		require.NoError(t, os.Symlink(jars, filepath.Join(home, filepath.Base(jars))))
	}
}

// repository is the clone's root.
func repository() string {
	_, file, _, _ := runtime.Caller(0) //nolint:dogsled // nothing else of it matters
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// freePorts returns the first of portsInAll free ports, below those that the system
// gives to connections: a server that restarts must find its port free.
func freePorts(t *testing.T) int {
	t.Helper()
	const lowest, highest = 18_000, 31_000
	for range 1000 {
		first := lowest + rand.IntN(highest-lowest)
		if allFree(t, first) {
			return first
		}
	}
	require.FailNow(t, "no free ports")
	return 0
}

func allFree(t *testing.T, first int) bool {
	t.Helper()
	for port := range portsInAll {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+port)))
		if err != nil {
			return false
		}
		require.NoError(t, listener.Close())
	}
	return true
}

// await asks until the answer is yes.
func await(ctx context.Context, what string, ask func() (bool, error)) error {
	const patience = time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	for {
		yes, err := ask()
		if err != nil || yes {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// pause is for how long something is broken.
func pause(ctx context.Context, wait time.Duration) error {
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

const (
	// demoVariable makes the test binary the demo.
	demoVariable = "QUICKSTART_TEST_DEMO"
	// exitLeak says that goroutines outlived the demo.
	exitLeak = 99

	wait = time.Minute
	tick = 20 * time.Millisecond
)

// go-metrics, which sarama uses, never ends its one goroutine.
var knownLeak = goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")

func TestMain(m *testing.M) {
	embedded.RunChildIfAsked()
	runForwarderIfAsked()
	if _, asked := os.LookupEnv(demoVariable); asked {
		exitCode := run(os.Args[1:])
		if err := goleak.Find(knownLeak); err != nil {
			fmt.Fprintln(os.Stderr, err)
			exitCode = exitLeak
		}
		os.Exit(exitCode)
	}
	goleak.VerifyTestMain(m, knownLeak)
}

const defaultPostgresDSN = "postgres://outbox:outbox@127.0.0.1:54329/outbox?sslmode=disable"

func postgresDSN() string { return cmp.Or(os.Getenv("POSTGRES_DSN"), defaultPostgresDSN) }

// program is the demo as a user runs it, without a terminal.
type program struct {
	*exec.Cmd

	stdout, stderr output
	// temp is the temp folder of it and of every process that it starts.
	temp string
}

func newProgram(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.CommandContext(t.Context(), os.Args[0], args...), temp: openFolder(t)}
	p.Env = append(os.Environ(), demoVariable+"=1", "TMPDIR="+p.temp)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	p.WaitDelay = wait
	return p
}

func (p *program) start(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
}

// finish runs the program and returns its exit code.
func (p *program) finish(t *testing.T) int {
	t.Helper()
	err := p.Run()
	require.NotNil(t, p.ProcessState, "%v", err)
	return p.ProcessState.ExitCode()
}

// awaitLine returns once the program has printed the text.
func (p *program) awaitLine(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.stdout.String(), text) }, wait, tick,
		"no %q", text)
}

// requireNothingLeft asserts that every process of the program and everything in its
// temp folder is gone, or is soon.
func (p *program) requireNothingLeft(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return len(p.processes(t)) == 0 }, wait, tick, "processes are left")
	require.Eventually(t, func() bool {
		left, err := os.ReadDir(p.temp)
		return err == nil && len(left) == 0
	}, wait, tick, "files are left")
}

// processes lists what belongs to the program, by the temp folder: in its environment,
// on its command line or as its working directory. The result maps a process's folder
// in /proc to its command line.
func (p *program) processes(t *testing.T) map[string]string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	found := map[string]string{}
	for _, process := range all {
		// A process that ends meanwhile is not one of them.
		environment, _ := os.ReadFile(filepath.Join(process, "environ"))
		command, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(process, "cwd"))
		if bytes.Contains(environment, []byte(p.temp)) || bytes.Contains(command, []byte(p.temp)) || strings.HasPrefix(cwd, p.temp) {
			if bytes.Contains(environment, []byte(forwarderVariable+"=")) {
				command = []byte("forwarder")
			}
			found[process] = string(bytes.ReplaceAll(command, []byte{0}, []byte(" ")))
		}
	}
	return found
}

// openFolder is a temp folder that the embedded server's user can use too.
func openFolder(t *testing.T) string {
	t.Helper()
	temp := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(temp), 0o755))
	require.NoError(t, os.Chmod(temp, 0o777))
	return temp
}

// output can be read while a process writes it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

var _ io.Writer = (*output)(nil)

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

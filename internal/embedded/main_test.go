package embedded_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

// roleVariable makes the test binary another program than the tests.
const roleVariable = "EMBEDDED_TEST_ROLE"

const (
	roleNoHook = "no-hook" // starts a Postgres without the hook
	roleParent = "parent"  // starts a Postgres and waits for its end
	roleStrict = "strict"  // a parent whose files are for nobody else
)

// parentReport is what a role prints, in one line.
type parentReport struct {
	DSN    string
	Error  string
	NoHook bool
}

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)

	if role == roleNoHook {
		playParent()
	}

	embedded.RunChildIfAsked()

	if role == roleStrict {
		syscall.Umask(0o077)
	}

	if role == roleParent || role == roleStrict {
		playParent()
	}

	goleak.VerifyTestMain(m,
		// Started once by a package that sarama uses, it never ends.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
	)
}

// playParent starts a Postgres, reports, and idles until its stdin ends.
func playParent() {
	pg, err := embedded.StartPostgres(context.Background(), embedded.PostgresConfig{})

	var report parentReport
	if err != nil {
		report = parentReport{Error: err.Error(), NoHook: errors.Is(err, embedded.ErrNoHook)}
	} else {
		report.DSN = pg.DSN()
	}

	text, err := json.Marshal(report)
	if err != nil {
		panic(err)
	}

	fmt.Println(string(text))

	_, _ = io.Copy(io.Discard, os.Stdin)

	// No Close: the end of this process must be enough.
	os.Exit(0)
}

// rolePlayer is the test binary in a role.
type rolePlayer struct {
	*exec.Cmd

	stdin  io.Closer
	stdout io.Reader
}

func startRole(t *testing.T, role string) rolePlayer {
	t.Helper()

	executable, err := os.Executable()
	require.NoError(t, err)

	cmd := exec.CommandContext(t.Context(), executable)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr

	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)

	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)

	require.NoError(t, cmd.Start())

	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // it was killed, or not: either is fine here
	})

	return rolePlayer{cmd, stdin, stdout}
}

// report waits for the line that the role prints.
func (p rolePlayer) report(t *testing.T) parentReport {
	t.Helper()

	line, err := bufio.NewReader(p.stdout).ReadBytes('\n')
	require.NoError(t, err, "it ended without a word")

	var report parentReport
	require.NoError(t, json.Unmarshal(line, &report))

	return report
}

package testamqp

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startTimeout is well beyond what a broker takes to start on a busy machine.
const startTimeout = 2 * time.Minute

// Broker is a RabbitMQ of a test's own, for what would disturb others: alarms, restarts.
type Broker struct{ port int }

// StartBroker starts a broker that is stopped after the test.
func StartBroker(t *testing.T) *Broker {
	t.Helper()
	b := &Broker{port: freePort(t)}
	// Not t.TempDir: its files belong to the broker's user while that still ends.
	folder, err := os.MkdirTemp("", "testamqp-") //nolint:usetesting // as said
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	require.NoError(t, os.Chmod(folder, 0o755))
	start := func(verb string) {
		t.Helper()
		b.run(t, "rabbitmq.sh", []string{"SERVICES_DIR=" + filepath.Join(folder, "services")}, verb)
	}
	t.Cleanup(func() { start("stop") })
	start("start")
	return b
}

// URI is the address of the broker.
func (b *Broker) URI() string { return fmt.Sprintf("amqp://outbox:outbox@127.0.0.1:%d/", b.port) }

// Control runs rabbitmqctl.
func (b *Broker) Control(t *testing.T, arguments ...string) {
	t.Helper()
	b.run(t, "rabbitmqctl.sh", nil, arguments...)
}

func (b *Broker) run(t *testing.T, script string, environment []string, arguments ...string) {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	require.True(t, ok)
	path := filepath.Join(filepath.Dir(file), "..", "services", script)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, path, arguments...)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "AMQP_URI=") {
			command.Env = append(command.Env, variable)
		}
	}
	command.Env = append(command.Env, fmt.Sprintf("SERVICES_RABBITMQ_PORT=%d", b.port))
	command.Env = append(command.Env, environment...)
	output, err := command.CombinedOutput()
	require.NoErrorf(t, err, "%s %v: %s", script, arguments, output)
}

// freePort returns the first of three free ports: the broker takes the next two for
// Erlang.
func freePort(t *testing.T) int {
	t.Helper()
	var listen net.ListenConfig
	for range 100 {
		listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address, ok := listener.Addr().(*net.TCPAddr)
		require.True(t, ok)
		require.NoError(t, listener.Close())
		if isFree(t, address.Port+1) && isFree(t, address.Port+2) {
			return address.Port
		}
	}
	require.FailNow(t, "no three free ports")
	return 0
}

func isFree(t *testing.T, port int) bool {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	require.NoError(t, listener.Close())
	return true
}

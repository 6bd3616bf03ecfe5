package testamqp

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startTimeout is well beyond what a broker takes to start on a busy machine.
const startTimeout = 2 * time.Minute

// Broker is a RabbitMQ of a test's own, for what would disturb others: alarms, restarts.
type Broker struct {
	port int
	tls  string // the folder of its certificate; empty: it speaks no TLS
}

// StartBroker starts a broker that is stopped after the test.
func StartBroker(t *testing.T) *Broker {
	t.Helper()
	return start(t, func(string) string { return "" })
}

// StartTLSBroker starts a broker that speaks TLS too, with the certificate of its server.
// If clients is not nil, they must show a certificate of that authority there.
func StartTLSBroker(t *testing.T, server Certificate, clients *Authority) *Broker {
	t.Helper()
	return start(t, func(folder string) string {
		folder = filepath.Join(folder, "tls")
		require.NoError(t, os.Mkdir(folder, 0o755)) // the broker's user reads it
		server.write(t, folder, "server")
		if clients != nil {
			writeFile(t, filepath.Join(folder, "clients.pem"), clients.PEM)
		}
		return folder
	})
}

// start asks for the folder of the certificate, below the one of the broker.
func start(t *testing.T, tls func(folder string) string) *Broker {
	t.Helper()
	b := &Broker{port: freePort(t)}
	// Not t.TempDir: its files belong to the broker's user while that still ends.
	folder, err := os.MkdirTemp("", "testamqp-") //nolint:usetesting // as said
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	require.NoError(t, os.Chmod(folder, 0o755))
	b.tls = tls(folder)
	start := func(verb string) {
		t.Helper()
		b.run(t, "rabbitmq.sh", []string{"SERVICES_DIR=" + filepath.Join(folder, "services"), "SERVICES_RABBITMQ_TLS=" + b.tls}, verb)
	}
	t.Cleanup(func() { start("stop") })
	start("start")
	if b.tls != "" {
		b.awaitTLS(t)
	}
	return b
}

// awaitTLS waits for the listener, which the broker opens after the plain one.
func (b *Broker) awaitTLS(t *testing.T) {
	t.Helper()
	const patience = 30 * time.Second
	require.Eventually(t, func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port+3)))
		return err == nil && conn.Close() == nil
	}, patience, 10*time.Millisecond)
}

// URI is the address of the broker.
func (b *Broker) URI() string { return fmt.Sprintf("amqp://outbox:outbox@127.0.0.1:%d/", b.port) }

// TLSURI is the address at which a broker of StartTLSBroker speaks TLS, at a host of that
// name or address.
func (b *Broker) TLSURI(host string) string {
	return "amqps://outbox:outbox@" + net.JoinHostPort(host, strconv.Itoa(b.port+3)) + "/"
}

// UseCertificate gives the broker another certificate, for connections from now on.
func (b *Broker) UseCertificate(t *testing.T, server Certificate) {
	t.Helper()
	server.write(t, b.tls, "server")
	b.Control(t, "eval", "ssl:clear_pem_cache().")
}

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

// freePort returns the first of four free ports: the broker takes the next two for Erlang,
// and one for TLS.
func freePort(t *testing.T) int {
	t.Helper()
	var listen net.ListenConfig
	for range 100 {
		listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address, ok := listener.Addr().(*net.TCPAddr)
		require.True(t, ok)
		require.NoError(t, listener.Close())
		if isFree(t, address.Port+1) && isFree(t, address.Port+2) && isFree(t, address.Port+3) {
			return address.Port
		}
	}
	require.FailNow(t, "no four free ports")
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

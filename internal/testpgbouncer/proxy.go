// Package testpgbouncer keeps the tests' PgBouncer from ending itself.
package testpgbouncer

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy leads to PgBouncer, and drops requests to cancel a statement: before version 1.21
// PgBouncer may end itself over them (https://github.com/pgbouncer/pgbouncer/issues/801
// and 822). Drivers send one whenever a context ends, as when a forwarder stops. A
// request to cancel promises nothing, so that nobody misses it.
type proxy struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
	served sync.WaitGroup
}

// StartProxy starts a proxy that leads to the PgBouncer at target, without requests to
// cancel, and returns the proxy's address. It is closed after the test, with all
// connections.
func StartProxy(t *testing.T, target string) (address string) {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, target: target, open: map[net.Conn]bool{}}
	p.served.Go(p.accept)
	t.Cleanup(p.close)
	return listener.Addr().String()
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for conn := range p.open {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.served.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.served.Go(func() { p.serve(client) })
	}
}

// track makes close end conn too. It says false where that has happened.
func (p *proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[conn] = true
	return !p.closed
}

func (p *proxy) end(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
	_ = conn.Close()
}

func (p *proxy) serve(client net.Conn) {
	defer p.end(client)
	if !p.track(client) {
		return
	}
	begin, err := readBegin(client)
	if err != nil {
		return
	}
	server, err := (&net.Dialer{}).Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.end(server)
	if !p.track(server) {
		return
	}
	if _, err := server.Write(begin); err != nil {
		return
	}
	var answers sync.WaitGroup
	answers.Go(func() { pass(client, server) })
	pass(server, client)
	answers.Wait()
}

var errNotPassed = errors.New("a request to cancel, or no client of Postgres")

// readBegin reads a client's first message: length, code and the rest (Postgres manual,
// "Message Formats"). PgBouncer wants it in one piece.
func readBegin(client net.Conn) ([]byte, error) {
	const (
		cancelRequest = 80877102
		longest       = 10_000
	)
	begin := make([]byte, longest)
	if _, err := io.ReadFull(client, begin[:8]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(begin)
	if length < 8 || length > longest || binary.BigEndian.Uint32(begin[4:]) == cancelRequest {
		return nil, errNotPassed
	}
	_, err := io.ReadFull(client, begin[8:length])
	return begin[:length], err
}

// pass copies until one side has ended, and ends the other.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil && !errors.Is(err, net.ErrClosed) {
		_ = from.Close()
	}
	_ = to.Close()
}

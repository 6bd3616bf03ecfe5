package forwarder_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// firewall stands before the database. It may forget the connections that are there: nobody
// is told, and their packets vanish.
type firewall struct {
	target string

	mu    sync.Mutex
	conns []*forgettable
}

type forgettable struct {
	client, server net.Conn
	mu             sync.Mutex
	forgotten      bool
}

// newFirewall returns it with the DSN that leads through it.
func newFirewall(t *testing.T, dsn string) (f *firewall, through string) {
	t.Helper()
	address, err := url.Parse(dsn)
	require.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f = &firewall{target: address.Host}
	var copies sync.WaitGroup
	copies.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", f.target) //nolint:noctx // it is closed with the test
			if err != nil {
				_ = client.Close()
				continue
			}
			c := &forgettable{client: client, server: server}
			f.mu.Lock()
			f.conns = append(f.conns, c)
			f.mu.Unlock()
			copies.Go(func() { c.copy(server, client) })
			copies.Go(func() { c.copy(client, server) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		f.mu.Lock()
		for _, c := range f.conns {
			_, _ = c.client.Close(), c.server.Close()
		}
		f.mu.Unlock()
		copies.Wait()
	})
	address.Host = listener.Addr().String()
	return f, address.String()
}

func (f *firewall) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.mu.Lock()
		c.forgotten = true
		c.mu.Unlock()
	}
}

func (c *forgettable) copy(to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		c.mu.Lock()
		forgotten := c.forgotten
		c.mu.Unlock()
		switch {
		case forgotten && err == nil:
			continue
		case forgotten:
			return // the other side is not told
		}
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			_, _ = c.client.Close(), c.server.Close()
			return
		}
	}
}

// lib/pq waits for a server whose packets vanish until the operating system gives up. The
// forwarder does not.
func TestForwarderGoesOnWhereConnectionsAreForgotten(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			wall, dsn := newFirewall(t, db.DSN)
			behind := &testdb.DB{DB: testdb.Open(t, driver, dsn), Schema: db.Schema, DSN: dsn}
			var r recorder
			insert(t, db, "orders", "a", ids("a", 3)...)
			start(t, behind, r.publisher(), fast(forwarder.Config{
				PublishTimeout: 100 * time.Millisecond, DatabaseTimeout: 200 * time.Millisecond,
			}))
			requireDrained(t, db)
			wall.forget()
			insert(t, db, "orders", "a", ids("b", 3)...)
			requireDrained(t, db)
			require.Equal(t, append(ids("a", 3), ids("b", 3)...), r.unit("orders", "a"))
		})
	}
}

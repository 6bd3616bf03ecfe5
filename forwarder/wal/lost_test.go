package wal_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// cable leads to the server, until it is cut: then nothing comes through any more, and nobody is told.
type cable struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	cut   bool
	ends  []net.Conn
	works sync.WaitGroup
}

// newCable returns a cable, and the DSN that leads through it.
func newCable(t *testing.T, dsn string) (c *cable, through string) {
	t.Helper()
	parsed, err := url.Parse(dsn)
	require.NoError(t, err)
	c = &cable{server: parsed.Host}
	c.listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c.works.Go(c.accept)
	t.Cleanup(func() {
		require.NoError(t, c.listener.Close())
		c.mu.Lock()
		for _, end := range c.ends {
			_ = end.Close()
		}
		c.mu.Unlock()
		c.works.Wait()
	})
	parsed.Host = c.listener.Addr().String()
	return c, parsed.String()
}

func (c *cable) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", c.server) //nolint:noctx // it ends with the test
		if err != nil {
			_ = client.Close()
			continue
		}
		c.mu.Lock()
		c.ends = append(c.ends, client, server)
		c.mu.Unlock()
		c.works.Go(func() { c.lead(client, server) })
		c.works.Go(func() { c.lead(server, client) })
	}
}

func (c *cable) lead(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if c.isCut() {
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

func (c *cable) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cable) sever() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
}

// A host that is lost without a word does not keep the slot, nor does its stream wait for ever.
func TestReaderThatIsLostFreesTheSlot(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	cable, through := newCable(t, db.DSN)
	insert(t, db, db, "before the slot")
	direct := newSource(t, db)
	lost, err := wal.New(wal.Config{
		Schema: db.Schema, ReplicationDSN: through, Slot: db.Schema.Schema, Publication: db.Schema.Schema, AcceptUnboundedWAL: true,
	}, nil)
	require.NoError(t, err)
	first := open(t, lost)
	insert(t, db, db, "1")
	require.Equal(t, []string{"1"}, idsOf(next(t, first, 1)))
	cable.sever()
	second := open(t, direct)
	require.Equal(t, []string{"1"}, idsOf(next(t, second, 1)))
	_, err = first.Next(t.Context())
	require.ErrorIs(t, err, wal.ErrSilent)
}

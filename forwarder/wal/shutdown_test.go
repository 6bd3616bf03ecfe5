package wal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// A server that shuts down waits until its readers have confirmed all, which they cannot do while
// the broker is away, nor settle anything any more.
func TestServerCanShutDown(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, schema.Postgres{Schema: "own"})
	db := server.DB
	var b broker
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	b.set(func() { b.gone = true })
	insertKeyed(t, db, db, "orders", "a", ids("a", 10)...)
	server.Shutdown(t)
	b.set(func() { b.gone = false })
	server.Start(t)
	eventually(t, func() bool { return len(b.of("a")) == 10 })
	require.Equal(t, ids("a", 10), b.of("a"))
}

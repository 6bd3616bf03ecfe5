package pgxtx_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

const (
	wait = 10 * time.Second
	tick = 5 * time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type testBundle struct {
	db        *testdb.DB
	pool      *pgxpool.Pool
	publisher *outbox.Publisher
}

func setup(t *testing.T, configure func(cfg *pgxpool.Config)) *testBundle {
	t.Helper()
	db := testdb.New(t)
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.Schema}, nil)
	require.NoError(t, err)
	return &testBundle{db: db, pool: testdb.OpenNative(t, db.DSN, configure), publisher: publisher}
}

// oneConnection makes a pool in which a connection that is not returned shows.
func oneConnection(cfg *pgxpool.Config) { cfg.MaxConns = 1 }

// begin begins a transaction that is rolled back after the test, if it is still open.
func (b *testBundle) begin(t *testing.T) pgx.Tx {
	t.Helper()
	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// outboxRows is what another connection sees.
func (b *testBundle) outboxRows(t *testing.T) (ids []string) {
	t.Helper()
	rows, err := b.db.QueryContext(t.Context(), `SELECT id FROM `+b.db.Schema.Outbox()+` ORDER BY seq`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(t, rows.Err())
	return ids
}

func newMessage(id string) *message.Message {
	return message.NewMessage(id, []byte(`{"event":"created"}`))
}

func backendPID(t *testing.T, tx pgx.Tx) (pid uint32) {
	t.Helper()
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
	return pid
}

// receive fails the test where nothing comes.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(wait):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

package wal_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// patience is longer than the longest transaction of other tests, for which a slot waits.
const patience = 3 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type option func(*wal.Config)

func newSource(t *testing.T, db *testdb.DB, options ...option) *wal.Source {
	t.Helper()
	name := db.Slot(t)
	cfg := wal.Config{Schema: db.Schema, ReplicationDSN: db.DSN, Slot: name, Publication: name, AcceptUnboundedWAL: true}
	for _, o := range options {
		o(&cfg)
	}
	source, err := wal.New(cfg, nil)
	require.NoError(t, err)
	return source
}

func open(t *testing.T, source *wal.Source) forwarder.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, source.Prepare(ctx))
	stream, err := source.Open(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { closeStream(t, stream) })
	return stream
}

func closeStream(t *testing.T, stream forwarder.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	require.NoError(t, stream.Close(ctx))
}

// next reads n changes.
func next(t *testing.T, stream forwarder.Stream, n int) (changes []forwarder.Change) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(changes) < n {
		more, err := stream.Next(ctx)
		require.NoError(t, err)
		changes = append(changes, more...)
	}
	require.Len(t, changes, n)
	return changes
}

func idsOf(changes []forwarder.Change) (ids []string) {
	for _, c := range changes {
		ids = append(ids, c.ID)
	}
	return ids
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func insert(t *testing.T, db *testdb.DB, to execer, ids ...string) {
	t.Helper()
	for _, id := range ids {
		exec(t, to, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES ($1, 'orders', 'x')`, id)
	}
}

func exec(t *testing.T, to execer, statement string, args ...any) {
	t.Helper()
	_, err := to.ExecContext(t.Context(), statement, args...)
	require.NoError(t, err, statement)
}

func begin(t *testing.T, db *testdb.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// confirmedBehind says whether the slot has confirmed all that was written up to now.
func confirmedBehind(t *testing.T, db *testdb.DB, slot, position string) bool {
	t.Helper()
	var behind bool
	require.NoError(t, db.QueryRowContext(t.Context(),
		`SELECT coalesce((SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1), false)`, slot, position).Scan(&behind))
	return behind
}

func position(t *testing.T, db *testdb.DB) (position string) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&position))
	return position
}

func ids(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d", prefix, i+1)
	}
	return list
}

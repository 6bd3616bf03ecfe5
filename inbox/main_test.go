package inbox_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

const (
	wait = 10 * time.Second
	tick = 5 * time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testBundle is what most tests need: a migrated schema, a pool of the driver under
// test and a store.
type testBundle struct {
	db    *testdb.DB
	pool  *sql.DB
	store *inbox.Store
}

func setup(t *testing.T, driver string) *testBundle {
	t.Helper()
	db := testdb.New(t)
	store, err := inbox.NewStore(inbox.Config{Schema: db.Schema})
	require.NoError(t, err)
	return &testBundle{db: db, pool: testdb.Open(t, driver, db.DSN), store: store}
}

func forEachDriver(t *testing.T, test func(t *testing.T, b *testBundle)) {
	t.Helper()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			test(t, setup(t, driver))
		})
	}
}

func (b *testBundle) begin(t *testing.T) *sql.Tx {
	t.Helper()
	return b.beginAt(t, sql.LevelReadCommitted)
}

func (b *testBundle) beginAt(t *testing.T, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := b.pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// record records key in tx, where no error is expected.
func (b *testBundle) record(t *testing.T, tx *sql.Tx, key inbox.Key) (fresh bool) {
	t.Helper()
	fresh, err := b.store.Record(t.Context(), tx, key)
	require.NoError(t, err)
	return fresh
}

// recordCommitted records key in a transaction of its own.
func (b *testBundle) recordCommitted(t *testing.T, key inbox.Key) (fresh bool) {
	t.Helper()
	tx := b.begin(t)
	fresh = b.record(t, tx, key)
	require.NoError(t, tx.Commit())
	return fresh
}

func (b *testBundle) count(t *testing.T) int {
	t.Helper()
	var n int
	require.NoError(t, b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+b.db.Schema.Inbox()).Scan(&n))
	return n
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

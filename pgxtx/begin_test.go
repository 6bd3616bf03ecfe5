package pgxtx_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/pgxtx"
)

// beginBound begins a transaction that ends with ctx, and gives both its faces: the one
// for the inbox and the one for handlers.
func (b *testBundle) beginBound(ctx context.Context, t *testing.T) (tx outbox.Tx, handlers pgx.Tx) {
	t.Helper()
	tx, err := pgxtx.NewBeginner(b.pool).Begin(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	handlers, ok := outbox.TxFromContext[pgx.Tx](outbox.ContextWithTx(ctx, tx))
	require.True(t, ok)
	return tx, handlers
}

// requireGone returns once Postgres has ended the session with its transaction.
func (b *testBundle) requireGone(t *testing.T, pid uint32) {
	t.Helper()
	require.Eventually(t, func() bool {
		var sessions int
		err := b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&sessions)
		return err == nil && sessions == 0
	}, wait, tick)
}

func TestBeginner_CommitAndRollback(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	tx, handlers := b.beginBound(t.Context(), t)
	pid := backendPID(t, handlers)
	require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("1")))
	require.Empty(t, b.outboxRows(t))
	require.NoError(t, tx.Commit())
	require.ErrorIs(t, tx.Rollback(), sql.ErrTxDone)

	tx, handlers = b.beginBound(t.Context(), t)
	require.Equal(t, pid, backendPID(t, handlers), "the connection is back in the pool")
	require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("2")))
	require.NoError(t, tx.Rollback())
	require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)

	_, handlers = b.beginBound(t.Context(), t)
	require.Equal(t, pid, backendPID(t, handlers), "and after a rollback too")
	require.Equal(t, []string{"1"}, b.outboxRows(t))
}

func TestBeginner_IsReadCommittedUnderAnyDefault(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.pool = testdb.OpenNative(t, testdb.WithSetting(t, b.db.DSN, "default_transaction_isolation", "serializable"), nil)
	_, handlers := b.beginBound(t.Context(), t)
	var isolation string
	require.NoError(t, handlers.QueryRow(t.Context(), `SHOW transaction_isolation`).Scan(&isolation))
	require.Equal(t, "read committed", isolation)
}

// The end of the context is the end of the transaction, at once: not when the handler
// comes back, and not when Rollback is called.
func TestBeginner_EndOfContextRollsBack(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	ctx, cancel := context.WithCancel(t.Context())
	tx, handlers := b.beginBound(ctx, t)
	pid := backendPID(t, handlers)
	require.NoError(t, b.publisher.PublishTx(ctx, tx, "orders", newMessage("1")))
	cancel()
	b.requireGone(t, pid)

	err := b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("2"))
	require.Error(t, err)
	_, err = handlers.Exec(t.Context(), `SELECT 1`)
	require.Error(t, err)
	err = tx.Commit()
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, tx.Rollback(), sql.ErrTxDone)
	require.Empty(t, b.outboxRows(t))

	_, handlers = b.beginBound(t.Context(), t) // the pool's only connection was replaced
	require.NotEqual(t, pid, backendPID(t, handlers))
}

// A context that ends just before the commit does not depend on who notices first.
func TestBeginner_CommitAfterTheEndOfTheContextFails(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		tx, handlers := b.beginBound(ctx, t)
		require.NoError(t, b.publisher.PublishTx(ctx, tx, "orders", newMessage("1")))
		cancel()
		require.ErrorIs(t, handlers.Commit(t.Context()), context.Canceled, "whatever context the commit itself has")
	}
	require.Empty(t, b.outboxRows(t))
}

func TestBeginner_RollbackAfterTheEndOfTheContextReturnsTheConnection(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		tx, _ := b.beginBound(ctx, t)
		cancel()
		if err := tx.Rollback(); err != nil {
			require.ErrorIs(t, err, sql.ErrTxDone)
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	_, handlers := b.beginBound(t.Context(), t)
	backendPID(t, handlers)
}

// A statement that runs under a context of its own does not keep the transaction.
func TestBeginner_EndOfContextEndsARunningStatement(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	ctx, cancel := context.WithCancel(t.Context())
	_, handlers := b.beginBound(ctx, t)
	pid := backendPID(t, handlers)
	done := make(chan error, 1)
	go func() {
		_, err := handlers.Exec(context.WithoutCancel(ctx), `SELECT pg_sleep(600)`)
		done <- err
	}()
	require.Eventually(t, func() bool {
		var sleeping bool
		err := b.db.QueryRowContext(t.Context(),
			`SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&sleeping)
		return err == nil && sleeping
	}, wait, tick)
	cancel()
	require.Error(t, receive(t, done))
	b.requireGone(t, pid)
}

// A handler must not end the transaction. If it does, the connection is another's: the
// end of the first context must leave that one alone.
func TestBeginner_EndOfContextSparesTheNextTransactionOnTheConnection(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	ctx, cancel := context.WithCancel(t.Context())
	tx, handlers := b.beginBound(ctx, t)
	pid := backendPID(t, handlers)
	require.NoError(t, handlers.Commit(ctx))

	next, nextHandlers := b.beginBound(t.Context(), t)
	require.Equal(t, pid, backendPID(t, nextHandlers))
	cancel()
	require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)
	require.ErrorIs(t, tx.Rollback(), sql.ErrTxDone)
	_, err := nextHandlers.Exec(t.Context(), `SELECT pg_sleep(0.1)`) // in which a closed socket shows
	require.NoError(t, err)
	require.NoError(t, b.publisher.PublishTx(t.Context(), next, "orders", newMessage("1")))
	require.NoError(t, next.Commit())
	require.Equal(t, []string{"1"}, b.outboxRows(t))
}

// Postgres would answer COMMIT outside of a transaction with a warning, which looks like
// success.
func TestBeginner_TransactionEndedByAStatement(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"COMMIT", "ROLLBACK"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			b := setup(t, oneConnection)
			tx, handlers := b.beginBound(t.Context(), t)
			pid := backendPID(t, handlers)
			_, err := handlers.Exec(t.Context(), statement)
			require.NoError(t, err)
			require.ErrorIs(t, tx.Commit(), sql.ErrTxDone)

			tx, handlers = b.beginBound(t.Context(), t)
			require.Equal(t, pid, backendPID(t, handlers), "the connection is sound")
			_, err = handlers.Exec(t.Context(), statement)
			require.NoError(t, err)
			require.ErrorIs(t, tx.Rollback(), sql.ErrTxDone, "there was nothing left to roll back")

			_, handlers = b.beginBound(t.Context(), t)
			require.Equal(t, pid, backendPID(t, handlers), "the connection is sound")
		})
	}
}

func TestBeginner_CommitOfAFailedTransactionIsAnError(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	tx, handlers := b.beginBound(t.Context(), t)
	_, err := handlers.Exec(t.Context(), `SELECT 1/0`)
	require.Error(t, err)
	require.ErrorIs(t, tx.Commit(), pgx.ErrTxCommitRollback)
	_, handlers = b.beginBound(t.Context(), t)
	backendPID(t, handlers)
}

// Handlers get all of pgx, not only what outbox.Tx has.
func TestBeginner_HandlersTransactionIsPgxs(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	tx, handlers := b.beginBound(t.Context(), t)
	inbox := pgx.Identifier{b.db.Schema.Schema, "inbox"}
	copied, err := handlers.CopyFrom(t.Context(), inbox, []string{"consumer", "event_id"},
		pgx.CopyFromRows([][]any{{"a", "1"}, {"a", "2"}}))
	require.NoError(t, err)
	require.EqualValues(t, 2, copied)

	batch := new(pgx.Batch)
	batch.Queue(`INSERT INTO `+inbox.Sanitize()+` (consumer, event_id) VALUES ($1, $2)`, "a", "3")
	require.NoError(t, handlers.SendBatch(t.Context(), batch).Close())

	err = pgx.BeginFunc(t.Context(), handlers, func(nested pgx.Tx) error {
		return b.publisher.PublishTx(t.Context(), pgxtx.Wrap(nested), "orders", newMessage("1"))
	})
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{"1"}, b.outboxRows(t))
	var keys int
	require.NoError(t, b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+b.db.Schema.Inbox()).Scan(&keys))
	require.Equal(t, 3, keys)
}

func TestBeginner_RefusesToBegin(t *testing.T) {
	t.Parallel()
	_, err := pgxtx.NewBeginner(nil).Begin(t.Context())
	require.ErrorContains(t, err, "the pool is nil")

	b := setup(t, oneConnection)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = pgxtx.NewBeginner(b.pool).Begin(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

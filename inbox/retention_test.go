package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/inbox"
)

const day = 24 * time.Hour

// addKeys records keys 1 to n of a consumer, received so long ago; each a microsecond
// after the one before.
func (b *testBundle) addKeys(t *testing.T, consumer string, n int, ago time.Duration) {
	t.Helper()
	_, err := b.db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO %s (consumer, event_id, received_at)
		SELECT $1, i::text, now() - $2::bigint * interval '1 microsecond' + i * interval '1 microsecond'
		FROM generate_series(1, $3::int) AS i`, b.db.Schema.Inbox()), consumer, ago.Microseconds(), n)
	require.NoError(t, err)
}

func TestDeleteOlderThan_DeletesInBatches(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		for _, n := range []int{0, 1, 999, 1000, 1001, 2500} {
			b.addKeys(t, "old", n, 8*day)
			b.addKeys(t, fmt.Sprintf("young %d", n), 3, 6*day)
			deleted, err := b.store.DeleteOlderThan(t.Context(), b.pool, 7*day)
			require.NoError(t, err)
			require.EqualValues(t, n, deleted)
		}
		require.Equal(t, 6*3, b.count(t))
	})
}

func TestDeleteOlderThan_KeysOfOneMoment(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	_, err := b.db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO %s (consumer, event_id, received_at)
		SELECT 'a', i::text, now() - interval '8 days' FROM generate_series(1, 2500) AS i`, b.db.Schema.Inbox()))
	require.NoError(t, err)
	deleted, err := b.store.DeleteOlderThan(t.Context(), b.pool, 7*day)
	require.NoError(t, err)
	require.EqualValues(t, 2500, deleted)
}

func TestDeleteOlderThan_PassesOverLockedKeys(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		b.addKeys(t, "old", 1500, 8*day)
		tx := b.begin(t)
		_, err := tx.ExecContext(t.Context(), `SELECT FROM `+b.db.Schema.Inbox()+` WHERE event_id IN ('7', '1000') FOR UPDATE`)
		require.NoError(t, err)

		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		deleted, err := b.store.DeleteOlderThan(ctx, b.pool, 7*day)
		require.NoError(t, err)
		require.EqualValues(t, 1498, deleted)

		require.NoError(t, tx.Rollback())
		deleted, err = b.store.DeleteOlderThan(t.Context(), b.pool, 7*day)
		require.NoError(t, err)
		require.EqualValues(t, 2, deleted)
	})
}

func TestDeleteOlderThan_SeveralAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	b.pool.SetMaxOpenConns(20)
	b.addKeys(t, "old", 20_000, 8*day)
	const callers = 4
	type result struct {
		deleted int64
		err     error
	}
	results := make(chan result, callers)
	for range callers {
		go func() {
			deleted, err := b.store.DeleteOlderThan(t.Context(), b.pool, 7*day)
			results <- result{deleted, err}
		}()
	}
	var sum int64
	for range callers {
		r := receive(t, results)
		require.NoError(t, r.err)
		sum += r.deleted
	}
	// What one caller holds the others pass over, so that together they miss nothing.
	require.EqualValues(t, 20_000, sum)
	require.Zero(t, b.count(t))
}

func TestDeleteOlderThan_DeletedKeyIsFreshAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	b.addKeys(t, "a", 1, 8*day)
	key := inbox.Key{Consumer: "a", EventID: "1"}
	require.False(t, b.recordCommitted(t, key))
	_, err := b.store.DeleteOlderThan(t.Context(), b.pool, 7*day)
	require.NoError(t, err)
	require.True(t, b.recordCommitted(t, key))
}

func TestDeleteOlderThan_StopsWithItsContext(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		b.addKeys(t, "old", 2500, 8*day)
		// The second batch meets a table lock; the first is committed by then.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b.blockAfterFirstBatch(t)
		type result struct {
			deleted int64
			err     error
		}
		done := make(chan result, 1)
		go func() {
			deleted, err := b.store.DeleteOlderThan(ctx, b.pool, 7*day)
			done <- result{deleted, err}
		}()
		require.Eventually(t, func() bool { return b.count(t) == 1500 && b.advisoryWaiter(t) }, wait, tick)
		cancel()
		got := receive(t, done)
		require.Error(t, got.err)
		require.EqualValues(t, 1000, got.deleted)
		require.Equal(t, 1500, b.count(t))
	})
}

// blockAfterFirstBatch makes deletes of keys above 1000 wait for an advisory lock
// that this test holds.
func (b *testBundle) blockAfterFirstBatch(t *testing.T) {
	t.Helper()
	name := b.db.Schema.Schema
	_, err := b.db.ExecContext(t.Context(), fmt.Sprintf(`CREATE FUNCTION %[1]s.block() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF OLD.event_id::int > 1000 THEN PERFORM pg_advisory_xact_lock(hashtext('%[1]s')); END IF;
			RETURN OLD;
		END $$`, name))
	require.NoError(t, err)
	_, err = b.db.ExecContext(t.Context(), fmt.Sprintf(
		`CREATE TRIGGER block BEFORE DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s.block()`, b.db.Schema.Inbox(), name))
	require.NoError(t, err)
	holder, err := b.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = holder.Rollback() })
	_, err = holder.ExecContext(t.Context(), `SELECT pg_advisory_xact_lock(hashtext($1))`, name)
	require.NoError(t, err)
}

func (b *testBundle) advisoryWaiter(t *testing.T) bool {
	t.Helper()
	var waiting bool
	err := b.db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity
		WHERE wait_event = 'advisory' AND query LIKE '%DELETE FROM%' || $1 || '%')`, b.db.Schema.Schema).Scan(&waiting)
	require.NoError(t, err)
	return waiting
}

func TestDeleteOlderThan_WorksUnderAnyDefaultIsolation(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	b.addKeys(t, "old", 10, 8*day)
	pool, err := sql.Open("postgres", b.db.DSN+"&default_transaction_isolation=serializable")
	require.NoError(t, err)
	defer func() { require.NoError(t, pool.Close()) }()
	deleted, err := b.store.DeleteOlderThan(t.Context(), pool, 7*day)
	require.NoError(t, err)
	require.EqualValues(t, 10, deleted)
}

// A forgotten setting must not empty the inbox.
func TestDeleteOlderThan_RefusesAgesThatAreNotPositive(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	b.addKeys(t, "a", 1, day)
	for _, age := range []time.Duration{0, -time.Second} {
		_, err := b.store.DeleteOlderThan(t.Context(), b.pool, age)
		require.ErrorIs(t, err, inbox.ErrInvalidAge)
	}
	require.Equal(t, 1, b.count(t))
}

func TestDeleteOlderThan_ReadsOnlyTheIndex(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	b.addKeys(t, "young", 20_000, day)
	b.addKeys(t, "old", 10, 8*day)
	_, err := b.db.ExecContext(t.Context(), `ANALYZE `+b.db.Schema.Inbox())
	require.NoError(t, err)

	plan := b.explain(t, inbox.DeleteBatchStatement(b.db.Schema.Inbox()), time.Time{}, time.Now().Add(-7*day))
	require.Contains(t, plan, "Index Scan using inbox_received_at_idx")
	require.Contains(t, plan, "Tid Scan")
	require.NotContains(t, plan, "Seq Scan")
	require.NotContains(t, plan, "Sort")
}

func (b *testBundle) explain(t *testing.T, statement string, args ...any) string {
	t.Helper()
	rows, err := b.db.QueryContext(t.Context(), `EXPLAIN `+statement, args...)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var plan strings.Builder
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		plan.WriteString(line + "\n")
	}
	require.NoError(t, rows.Err())
	return plan.String()
}

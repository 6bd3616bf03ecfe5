package inbox_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
)

func TestRecordWithin_BoundsTheWaitForTheKeyOnly(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		first, second, third := b.begin(t), b.begin(t), b.begin(t)
		_, err := first.ExecContext(t.Context(), `SET LOCAL lock_timeout = '7s'`)
		require.NoError(t, err)
		limits := inbox.Limits{Wait: 1500 * time.Microsecond}
		fresh, err := b.store.RecordWithin(t.Context(), first, paid("created"), limits)
		require.NoError(t, err)
		require.True(t, fresh)
		require.Equal(t, "7s", setting(t, first, "lock_timeout"))

		_, err = b.store.RecordWithin(t.Context(), second, paid("created"), limits)
		require.ErrorIs(t, err, inbox.ErrBusy)
		require.NoError(t, first.Commit())

		before := setting(t, third, "lock_timeout")
		fresh, err = b.store.RecordWithin(t.Context(), third, paid("created"), limits)
		require.NoError(t, err)
		require.False(t, fresh)
		require.Equal(t, before, setting(t, third, "lock_timeout"))
		_, err = b.store.RecordWithin(t.Context(), third, paid("cancelled"), limits)
		require.ErrorIs(t, err, inbox.ErrIDReused)
		require.NoError(t, third.Commit())
		require.Equal(t, 1, b.count(t))
	})
}

// The wait for the table, which a migration may have locked, has the same bound.
func TestRecordWithin_BoundsTheWaitForTheTable(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		migration, tx := b.begin(t), b.begin(t)
		_, err := migration.ExecContext(t.Context(), `LOCK TABLE `+b.db.Schema.Inbox()+` IN ACCESS EXCLUSIVE MODE`)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		_, err = b.store.RecordWithin(ctx, tx, paid("created"), inbox.Limits{Wait: time.Nanosecond}) // zero would be no limit
		require.ErrorIs(t, err, inbox.ErrBusy)
	})
}

func TestRecordWithin_SetsNothingThatIsNotAsked(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		for _, test := range []struct {
			name, before, after string
			limits              inbox.Limits
		}{
			{"lock_timeout", "7s", "7s", inbox.Limits{}},
			{"idle_in_transaction_session_timeout", "7s", "7s", inbox.Limits{Wait: time.Second}},
			{"idle_in_transaction_session_timeout", "7s", "2001ms", inbox.Limits{Idle: 2000*time.Millisecond + 1}},
			{"idle_in_transaction_session_timeout", "2s", "2s", inbox.Limits{Idle: 3 * time.Second}},
			{"idle_in_transaction_session_timeout", "0", "3s", inbox.Limits{Idle: 3 * time.Second}},
			{"synchronous_commit", "off", "on", inbox.Limits{}},
			{"synchronous_commit", "remote_apply", "remote_apply", inbox.Limits{}},
		} {
			tx := b.begin(t)
			_, err := tx.ExecContext(t.Context(), `SET LOCAL `+test.name+` = '`+test.before+`'`)
			require.NoError(t, err)
			fresh, err := b.store.RecordWithin(t.Context(), tx, paid("created"), test.limits)
			require.NoError(t, err)
			require.True(t, fresh)
			require.Equal(t, test.after, setting(t, tx, test.name), "%+v", test)
			require.NoError(t, tx.Rollback())
		}
	})
}

func TestRecordWithin_ChecksItsLimits(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	tx := b.begin(t)
	for _, limits := range []inbox.Limits{{Wait: -1}, {Idle: -time.Second}, {Wait: inbox.MaxLimit + 1}, {Idle: inbox.MaxLimit + 1}} {
		_, err := b.store.RecordWithin(t.Context(), tx, paid("created"), limits)
		require.ErrorIs(t, err, inbox.ErrInvalidLimits)
	}
	_, err := b.store.RecordWithin(t.Context(), nil, paid("created"), inbox.Limits{})
	require.ErrorIs(t, err, outbox.ErrNoTx)
	fresh, err := b.store.RecordWithin(t.Context(), tx, paid("created"), inbox.Limits{Wait: inbox.MaxLimit, Idle: inbox.MaxLimit})
	require.NoError(t, err)
	require.True(t, fresh)
}

func setting(t *testing.T, tx *sql.Tx, name string) (value string) {
	t.Helper()
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT pg_catalog.current_setting($1)`, name).Scan(&value))
	return value
}

package inbox_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/schema"
)

func paid(payload string) inbox.Key {
	return inbox.Key{Consumer: "payments", EventID: "order-1", Digest: inbox.Digest("orders", []byte(payload))}
}

func TestRecord_AcceptsAKeyOnce(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		require.True(t, b.recordCommitted(t, paid("created")))
		require.False(t, b.recordCommitted(t, paid("created")))
		require.Equal(t, 1, b.count(t))
	})
}

func TestRecord_TwiceInOneTransaction(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		tx := b.begin(t)
		require.True(t, b.record(t, tx, paid("created")))
		require.False(t, b.record(t, tx, paid("created")))
		_, err := b.store.Record(t.Context(), tx, paid("cancelled"))
		require.ErrorIs(t, err, inbox.ErrIDReused)
		require.NoError(t, tx.Commit())
		require.Equal(t, 1, b.count(t))
	})
}

func TestRecord_RolledBackKeyIsFreshAgain(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		tx := b.begin(t)
		require.True(t, b.record(t, tx, paid("created")))
		require.NoError(t, tx.Rollback())
		require.Zero(t, b.count(t))
		require.True(t, b.recordCommitted(t, paid("created")))
	})
}

func TestRecord_ConsumersDoNotHideEachOthersEvents(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		require.True(t, b.recordCommitted(t, inbox.Key{Consumer: "payments", EventID: "1"}))
		require.True(t, b.recordCommitted(t, inbox.Key{Consumer: "shipping", EventID: "1"}))
		// Consumer and id are two columns, not one text.
		require.True(t, b.recordCommitted(t, inbox.Key{Consumer: "a", EventID: "bc"}))
		require.True(t, b.recordCommitted(t, inbox.Key{Consumer: "ab", EventID: "c"}))
	})
}

func TestRecord_DuplicateDoesNotPoisonTheTransaction(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		require.True(t, b.recordCommitted(t, paid("created")))

		tx := b.begin(t)
		require.False(t, b.record(t, tx, paid("created")))
		_, err := b.store.Record(t.Context(), tx, paid("cancelled"))
		require.ErrorIs(t, err, inbox.ErrIDReused)
		require.True(t, b.record(t, tx, inbox.Key{Consumer: "payments", EventID: "order-2"}))
		require.NoError(t, tx.Commit())
		require.Equal(t, 2, b.count(t))
	})
}

func TestRecord_SameIDWithOtherContentIsAnError(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		require.True(t, b.recordCommitted(t, paid("created")))

		fresh, err := b.store.Record(t.Context(), b.begin(t), paid("cancelled"))
		require.ErrorIs(t, err, inbox.ErrIDReused)
		require.ErrorContains(t, err, `consumer "payments", event id "order-1"`)
		require.False(t, fresh)
	})
}

func TestRecord_WithoutDigestContentIsNotCompared(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		require.True(t, b.recordCommitted(t, inbox.Key{Consumer: "a", EventID: "stored without"}))
		require.False(t, b.recordCommitted(t, inbox.Key{Consumer: "a", EventID: "stored without", Digest: []byte("x")}))

		require.True(t, b.recordCommitted(t, inbox.Key{Consumer: "a", EventID: "stored with", Digest: []byte("x")}))
		require.False(t, b.recordCommitted(t, inbox.Key{Consumer: "a", EventID: "stored with"}))
		require.False(t, b.recordCommitted(t, inbox.Key{Consumer: "a", EventID: "stored with", Digest: []byte{}}))
	})
}

func TestRecord_IgnoreContent(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		var err error
		b.store, err = inbox.NewStore(inbox.Config{Schema: b.db.Schema, IgnoreContent: true})
		require.NoError(t, err)

		require.True(t, b.recordCommitted(t, paid("created")))
		require.False(t, b.recordCommitted(t, paid("cancelled")))

		var isNull bool
		err = b.db.QueryRowContext(t.Context(), `SELECT digest IS NULL FROM `+b.db.Schema.Inbox()).Scan(&isNull)
		require.NoError(t, err)
		require.True(t, isNull, "the digest is NULL where the check is turned off")
	})
}

func TestRecord_ConcurrentDuplicateWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end     func(first *sql.Tx) error
		payload string
		fresh   bool
		err     error
	}{
		"it commits":                    {end: (*sql.Tx).Commit, payload: "created", fresh: false},
		"it commits with other content": {end: (*sql.Tx).Commit, payload: "cancelled", err: inbox.ErrIDReused},
		"it rolls back":                 {end: (*sql.Tx).Rollback, payload: "created", fresh: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDriver(t, func(t *testing.T, b *testBundle) {
				first, second := b.begin(t), b.begin(t)
				require.True(t, b.record(t, first, paid("created")))

				type result struct {
					fresh bool
					err   error
				}
				done := make(chan result, 1)
				go func() {
					fresh, err := b.store.Record(t.Context(), second, paid(test.payload))
					done <- result{fresh, err}
				}()
				b.requireWaiting(t)
				require.NoError(t, test.end(first))

				got := receive(t, done)
				require.ErrorIs(t, got.err, test.err)
				require.Equal(t, test.fresh, got.fresh)
				require.NoError(t, second.Commit())
				require.Equal(t, 1, b.count(t))
			})
		})
	}
}

func TestRecord_LockTimeoutIsErrBusy(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		first, second := b.begin(t), b.begin(t)
		require.True(t, b.record(t, first, paid("created")))
		_, err := second.ExecContext(t.Context(), `SET LOCAL lock_timeout = '10ms'`)
		require.NoError(t, err)

		_, err = b.store.Record(t.Context(), second, paid("created"))
		require.ErrorIs(t, err, inbox.ErrBusy)
	})
}

func TestRecord_ContextBoundsTheWait(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		first, second := b.begin(t), b.begin(t)
		require.True(t, b.record(t, first, paid("created")))

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := b.store.Record(ctx, second, paid("created"))
			done <- err
		}()
		b.requireWaiting(t)
		cancel()
		require.Error(t, receive(t, done))
	})
}

// Above READ COMMITTED a concurrent key can only be an error: the doc comment says
// so, and the answer is never a wrong one.
func TestRecord_RepeatableReadIsASerializationFailure(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		tx := b.beginAt(t, sql.LevelRepeatableRead)
		_, err := tx.ExecContext(t.Context(), `SELECT 1`) // takes the snapshot
		require.NoError(t, err)
		require.True(t, b.recordCommitted(t, paid("created")))

		_, err = b.store.Record(t.Context(), tx, paid("created"))
		var state interface{ SQLState() string }
		require.ErrorAs(t, err, &state)
		require.Equal(t, "40001", state.SQLState())
	})
}

func TestRecord_RefusesKeysBeforeTheDatabaseSeesThem(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	long := strings.Repeat("x", 256)
	tests := map[string]struct {
		key  inbox.Key
		rule string
	}{
		"no consumer":         {inbox.Key{EventID: "1"}, "the consumer is empty"},
		"no id":               {inbox.Key{Consumer: "a"}, "the event id is empty"},
		"long consumer":       {inbox.Key{Consumer: long, EventID: "1"}, "the consumer has 256 bytes, at most 255 are allowed"},
		"long id":             {inbox.Key{Consumer: "a", EventID: long}, "the event id has 256 bytes, at most 255 are allowed"},
		"consumer not UTF-8":  {inbox.Key{Consumer: "\xff", EventID: "1"}, "is not valid UTF-8"},
		"id not UTF-8":        {inbox.Key{Consumer: "a", EventID: "\xff"}, "is not valid UTF-8"},
		"NUL in the consumer": {inbox.Key{Consumer: "a\x00", EventID: "1"}, "holds a NUL byte"},
		"NUL in the id":       {inbox.Key{Consumer: "a", EventID: "1\x00"}, "holds a NUL byte"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx := b.begin(t)
			_, err := b.store.Record(t.Context(), tx, test.key)
			require.ErrorIs(t, err, inbox.ErrInvalidKey)
			require.ErrorContains(t, err, test.rule)
			_, err = tx.ExecContext(t.Context(), `SELECT 1`)
			require.NoError(t, err, "the transaction is not poisoned")
		})
	}
}

func TestRecord_AcceptsTheLongestKey(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		key := inbox.Key{Consumer: strings.Repeat("c", inbox.MaxConsumerBytes), EventID: strings.Repeat("é", 127) + "x"}
		require.Len(t, key.EventID, outbox.MaxIDBytes)
		require.True(t, b.recordCommitted(t, key))
		require.False(t, b.recordCommitted(t, key))
	})
}

func TestRecord_WithoutTransaction(t *testing.T) {
	t.Parallel()
	store, err := inbox.NewStore(inbox.Config{})
	require.NoError(t, err)
	for _, none := range []outbox.Tx{nil, (*sql.Tx)(nil)} {
		_, err = store.Record(t.Context(), none, paid("created"))
		require.ErrorIs(t, err, outbox.ErrNoTx)
	}
}

// As with a table from before the function.
func TestRecord_WithoutItsFunctionSaysWhatToDo(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		_, err := b.db.ExecContext(t.Context(), `DROP FUNCTION IF EXISTS `+b.db.Schema.RecordFunction())
		require.NoError(t, err)
		_, err = b.store.Record(t.Context(), b.begin(t), paid("created"))
		require.ErrorIs(t, err, schema.ErrNotMigrated)
	})
}

func TestNewStore_RefusesInvalidNames(t *testing.T) {
	t.Parallel()
	_, err := inbox.NewStore(inbox.Config{Schema: schema.Postgres{InboxName: strings.Repeat("x", 64)}})
	require.ErrorIs(t, err, schema.ErrInvalidName)
}

// requireWaiting returns once a statement on this test's tables waits for a lock.
func (b *testBundle) requireWaiting(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waiting int
		err := b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_catalog.pg_stat_activity
			WHERE wait_event_type = 'Lock' AND strpos(query, $1) > 0`, b.db.Schema.RecordFunction()).Scan(&waiting)
		return err == nil && waiting > 0
	}, wait, tick)
}

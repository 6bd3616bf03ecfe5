package pgxtx_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/pgxtx"
)

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

func forEachExecMode(t *testing.T, test func(t *testing.T, b *testBundle)) {
	t.Helper()
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			test(t, setup(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode }))
		})
	}
}

// awkward payloads and texts: what encoding as a parameter, an array or a literal could
// change.
var awkward = []string{
	"", "plain", `{"a":"\u00e9\n\\"}`, "NULL", `"quoted"`, `it's`, `back\slash`, "{}", ",", "é✓𝄞", " space ", "\t\r\n", "$1",
	"\x00", "\xff\xfe", "a\x00b", `\x41`, "\x1f",
}

func TestWrap_PublishTxKeepsEveryByte(t *testing.T) {
	t.Parallel()
	forEachExecMode(t, func(t *testing.T, b *testBundle) {
		var msgs []*message.Message
		for i, payload := range awkward {
			text := strings.ToValidUTF8(strings.ReplaceAll(payload, "\x00", ""), "")
			msg := message.NewMessage(fmt.Sprintf("id-%d %s", i, text), []byte(payload))
			msg.Metadata.Set("key "+text, text)
			msg.Metadata.Set(outbox.PartitionKeyMetadata, text)
			msgs = append(msgs, msg)
		}
		many := "many"
		for destination, perCall := range map[string]int{"one": 1, many: len(msgs)} {
			tx := b.begin(t)
			for start := 0; start < len(msgs); start += perCall {
				require.NoError(t, b.publisher.PublishTx(t.Context(), pgxtx.Wrap(tx), destination, msgs[start:start+perCall]...))
			}
			require.NoError(t, tx.Commit(t.Context()))

			rows, err := b.db.QueryContext(t.Context(), `SELECT id, coalesce(partition_key, ''),
				coalesce(payload_bytes, convert_to(payload, 'UTF8')), metadata ->> ('key ' || coalesce(partition_key, ''))
				FROM `+b.db.Schema.Outbox()+` WHERE destination = $1 ORDER BY seq`, destination)
			require.NoError(t, err)
			defer rows.Close()
			for i := 0; rows.Next(); i++ {
				var id, key, value string
				var payload []byte
				require.NoError(t, rows.Scan(&id, &key, &payload, &value))
				require.Equal(t, msgs[i].UUID, id)
				require.Equal(t, msgs[i].Metadata.Get(outbox.PartitionKeyMetadata), key)
				require.Equal(t, key, value)
				require.Equal(t, awkward[i], string(payload))
			}
			require.NoError(t, rows.Err())
		}
		require.Len(t, b.outboxRows(t), 2*len(msgs))
	})
}

func TestWrap_RollbackLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	tx := b.begin(t)
	require.NoError(t, b.publisher.PublishTx(t.Context(), pgxtx.Wrap(tx), "orders", newMessage("1"), newMessage("2")))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Empty(t, b.outboxRows(t))
}

// Savepoints: what is published in one goes the way of everything around it.
func TestWrap_NestedTransaction(t *testing.T) {
	t.Parallel()
	type end = func(pgx.Tx, context.Context) error
	commit, rollback := pgx.Tx.Commit, pgx.Tx.Rollback
	for name, test := range map[string]struct {
		inner, middle, outer end
		want                 []string
	}{
		"all commit":           {commit, commit, commit, []string{"outer", "middle", "inner"}},
		"the inner rolls back": {rollback, commit, commit, []string{"outer", "middle"}},
		"the middle one does":  {commit, rollback, commit, []string{"outer"}},
		"the outermost does":   {commit, commit, rollback, nil},
		"all but it do":        {rollback, rollback, commit, []string{"outer"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, oneConnection)
			publish := func(tx pgx.Tx, id string) {
				require.NoError(t, b.publisher.PublishTx(t.Context(), pgxtx.Wrap(tx), "orders", newMessage(id)))
			}
			outer := b.begin(t)
			publish(outer, "outer")
			middle, err := outer.Begin(t.Context())
			require.NoError(t, err)
			publish(middle, "middle")
			inner, err := middle.Begin(t.Context())
			require.NoError(t, err)
			publish(inner, "inner")

			require.NoError(t, test.inner(inner, t.Context()))
			require.NoError(t, test.middle(middle, t.Context()))
			require.Empty(t, b.outboxRows(t), "nothing is there before the outermost commit")
			require.NoError(t, test.outer(outer, t.Context()))
			require.Equal(t, test.want, b.outboxRows(t))
		})
	}
}

func TestWrap_AsAWatermillPublisher(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	tx := b.begin(t)
	wrapped := pgxtx.Wrap(tx)
	require.NoError(t, b.publisher.InTx(wrapped).Publish("orders", newMessage("1")))

	ctx := outbox.ContextWithTx(t.Context(), wrapped)
	found, ok := outbox.TxFromContext[pgx.Tx](ctx)
	require.True(t, ok)
	require.Same(t, tx, found)
	_, ok = outbox.TxFromContext[*sql.Tx](ctx)
	require.False(t, ok)
	first, second := newMessage("2"), newMessage("3")
	first.SetContext(ctx)
	second.SetContext(outbox.ContextWithTx(t.Context(), pgxtx.Wrap(tx)))
	require.NoError(t, b.publisher.Publish("orders", first, second))

	require.NoError(t, wrapped.Commit())
	require.Equal(t, []string{"1", "2", "3"}, b.outboxRows(t))
}

func TestWrap_NilIsNoTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	require.ErrorIs(t, b.publisher.PublishTx(t.Context(), pgxtx.Wrap(nil), "orders", newMessage("1")), outbox.ErrNoTx)
}

func TestWrap_EndedTransaction(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(outbox.Tx) error{"commit": outbox.Tx.Commit, "rollback": outbox.Tx.Rollback} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, oneConnection)
			tx := pgxtx.Wrap(b.begin(t))
			require.NoError(t, end(tx))
			for _, err := range []error{
				tx.Commit(),
				tx.Rollback(),
				b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("1")),
			} {
				require.ErrorIs(t, err, sql.ErrTxDone)
				require.ErrorIs(t, err, pgx.ErrTxClosed)
			}
			require.Empty(t, b.outboxRows(t))
		})
	}
}

// Postgres answers the COMMIT of a failed transaction with a rollback.
func TestWrap_CommitOfAFailedTransactionIsAnError(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	tx := pgxtx.Wrap(b.begin(t))
	require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("1")))
	_, err := tx.ExecContext(t.Context(), `SELECT 1/0`)
	require.Error(t, err)
	err = b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("2"))
	require.ErrorContains(t, err, "25P02")
	require.ErrorIs(t, tx.Commit(), pgx.ErrTxCommitRollback)
	require.Empty(t, b.outboxRows(t))
}

func TestWrap_Result(t *testing.T) {
	t.Parallel()
	b := setup(t, oneConnection)
	tx := pgxtx.Wrap(b.begin(t))
	for query, want := range map[string]int64{
		`SELECT 1 FROM generate_series(1, 3)`: 3,
		`SELECT 1 WHERE false`:                0,
		`SET LOCAL work_mem = '1MB'`:          0,
		`INSERT INTO ` + b.db.Schema.Inbox() + ` (consumer, event_id) VALUES ('a', '1'), ('a', '2')`: 2,
	} {
		result, err := tx.ExecContext(t.Context(), query)
		require.NoError(t, err)
		rows, err := result.RowsAffected()
		require.NoError(t, err)
		require.Equal(t, want, rows, query)
		_, err = result.LastInsertId()
		require.Error(t, err)
	}
}

// The inbox's store on a native transaction of the caller's.
func TestWrap_Record(t *testing.T) {
	t.Parallel()
	forEachExecMode(t, func(t *testing.T, b *testBundle) {
		store, err := inbox.NewStore(inbox.Config{Schema: b.db.Schema})
		require.NoError(t, err)
		record := func(tx pgx.Tx, key inbox.Key) (bool, error) { return store.Record(t.Context(), pgxtx.Wrap(tx), key) }
		noContent := inbox.Key{Consumer: "it's", EventID: `back\slash`}
		created := inbox.Key{Consumer: "it's", EventID: "2", Digest: inbox.Digest("orders", []byte("created"))}

		tx := b.begin(t)
		for _, key := range []inbox.Key{noContent, created} {
			for _, want := range []bool{true, false} {
				fresh, err := record(tx, key)
				require.NoError(t, err)
				require.Equal(t, want, fresh)
			}
		}
		cancelled := created
		cancelled.Digest = inbox.Digest("orders", []byte("cancelled"))
		_, err = record(tx, cancelled)
		require.ErrorIs(t, err, inbox.ErrIDReused)

		other := b.begin(t)
		_, err = other.Exec(t.Context(), `SET LOCAL lock_timeout = '1ms'`)
		require.NoError(t, err)
		_, err = record(other, created)
		require.ErrorIs(t, err, inbox.ErrBusy)

		require.NoError(t, tx.Commit(t.Context()))
		var digest []byte
		require.NoError(t, b.db.QueryRowContext(t.Context(),
			`SELECT digest FROM `+b.db.Schema.Inbox()+` WHERE event_id = '2'`).Scan(&digest))
		require.Equal(t, created.Digest, digest)
	})
}

package middleware_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
	"github.com/watermill-outbox/outbox/pgxtx"
)

func TestInbox_EveryExecModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t, native)
			b.pool = nativeDatabase{testdb.OpenNative(t, b.db.DSN, func(cfg *pgxpool.Config) {
				cfg.ConnConfig.DefaultQueryExecMode = mode
			})}
			b.pool.configure(&b.config)
			errs := route{publish: "payment.made", publisher: b.config.Outbox}.deliver(t,
				b.then(returning(newMessage("paid-1"), message.NewMessage("paid-2", []byte("\x00\xff")))),
				[]message.HandlerMiddleware{b.inbox(t).Middleware},
				newMessage("1"), newMessage("1"), message.NewMessage("1", []byte("other content")))
			require.NoError(t, errs[0])
			require.NoError(t, errs[1])
			require.True(t, middleware.IsPermanent(errs[2]))
			require.EqualValues(t, 1, b.runs.Load())
			require.EqualValues(t, 1, b.duplicates.Load())
			require.Equal(t, counts{keys: 1, effects: 1, outbox: 2}, b.counts(t))
		})
	}
}

// The server commits and the answer is lost: the middleware reports an error, and the
// redelivery is recognised.
func TestInbox_UnknownCommitOutcomeIsSafeOnPgx(t *testing.T) {
	t.Parallel()
	b := setup(t, native)
	var commits atomic.Int64
	sound := b.pool
	b.pool = nativeDatabase{testdb.OpenNative(t, b.db.DSN, func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return &deafSocket{Conn: conn, commits: &commits}, err
		}
	})}
	b.pool.configure(&b.config)
	_, err := b.wrap(t, b.debit)(newMessage("1"))
	require.Error(t, err)
	require.False(t, middleware.IsPermanent(err))
	require.EqualValues(t, 1, commits.Load())
	require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	b.requireIdle(t)

	b.pool = sound
	b.pool.configure(&b.config)
	_, err = b.wrap(t, b.debit)(newMessage("1"))
	require.NoError(t, err)
	require.EqualValues(t, 1, b.runs.Load())
	require.EqualValues(t, 1, b.duplicates.Load())
	require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
}

// deafSocket sends a COMMIT, waits for its answer and reports it as lost.
type deafSocket struct {
	net.Conn

	commits *atomic.Int64
	deaf    atomic.Bool
}

func (s *deafSocket) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("commit\x00")) {
		s.commits.Add(1)
		s.deaf.Store(true)
	}
	return s.Conn.Write(p)
}

func (s *deafSocket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if err == nil && s.deaf.Load() {
		return 0, errAnswerLost
	}
	return n, err
}

// A handler that ends the transaction in SQL is told so: on pgx's own word alone, the
// commit would pass for a success.
func TestInbox_HandlerThatEndsThePgxTransactionInSQL(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"COMMIT", "ROLLBACK"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			b := setup(t, native)
			_, err := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
				return nil, b.pool.exec(msg.Context(), statement)
			}))(newMessage("1"))
			require.ErrorIs(t, err, middleware.ErrTxEnded)
			require.True(t, middleware.IsPermanent(err))
			b.requireIdle(t)
		})
	}
}

// Rows that are left open keep a connection of pgx busy: that is an error, and it does
// not stay with the connection.
func TestInbox_HandlerThatLeavesRowsOpen(t *testing.T) {
	t.Parallel()
	b := setup(t, native)
	_, err := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := outbox.TxFromContext[pgx.Tx](msg.Context())
		_, err := tx.Query(msg.Context(), `SELECT generate_series(1, 10)`) //nolint:sqlclosecheck // the mistake
		return nil, err
	}))(newMessage("1"))
	require.ErrorContains(t, err, "conn busy")
	require.Equal(t, counts{}, b.counts(t))
	b.requireIdle(t)

	_, err = b.wrap(t, b.debit)(newMessage("1"))
	require.NoError(t, err)
	require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
}

// Inboxes of two databases around one handler are two inboxes.
func TestInbox_TwoPoolsAreTwoInboxes(t *testing.T) {
	t.Parallel()
	outer, inner := setup(t, native), setup(t, native)
	handler := outer.wrap(t, outer.then(func(msg *message.Message) ([]*message.Message, error) {
		return inner.wrap(t, inner.debit)(msg)
	}))
	for range 2 {
		_, err := handler(newMessage("1"))
		require.NoError(t, err)
	}
	require.Equal(t, counts{keys: 1, effects: 1}, outer.counts(t))
	require.Equal(t, counts{keys: 1, effects: 1}, inner.counts(t))
}

// uncomparable would make a comparison panic.
type uncomparable struct {
	middleware.Beginner

	_ []int
}

func TestInbox_AroundItselfWithABeginnerThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	b := setup(t, native)
	pool := b.pool.(nativeDatabase).pool
	b.config.Beginner = uncomparable{Beginner: pgxtx.NewBeginner(pool)}
	i := b.inbox(t)
	handler := i.Middleware(i.Middleware(b.debit))
	for range 2 {
		_, err := handler(newMessage("1"))
		require.NoError(t, err)
	}
	require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
}

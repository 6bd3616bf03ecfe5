package middleware_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
)

func TestInbox_FailedCommitLeavesNothing(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		// The second effect breaks a constraint that is checked at commit.
		_, err := b.wrap(t, b.then(b.debit))(newMessage("1"))
		require.Error(t, err)
		require.False(t, middleware.IsPermanent(err))
		require.Equal(t, counts{}, b.counts(t))
		b.requireIdle(t)
	})
}

// Postgres answers the COMMIT of a failed transaction with a rollback; that must not
// look like success.
func TestInbox_HandlerThatHidesADatabaseErrorLeavesNothing(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		_, err := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
			_ = b.pool.exec(msg.Context(), `SELECT 1/0`)
			return nil, nil
		}))(newMessage("1"))
		require.Error(t, err)
		require.Equal(t, counts{}, b.counts(t))
	})
}

// The server commits and the answer is lost: the middleware reports an error, and the
// redelivery is recognised.
func TestInbox_UnknownCommitOutcomeIsSafe(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	connector, err := pq.NewConnector(b.db.DSN)
	require.NoError(t, err)
	deaf := sql.OpenDB(deafConnector{connector})
	defer func() { require.NoError(t, deaf.Close()) }()
	b.config.DB = deaf
	_, err = b.wrap(t, b.debit)(newMessage("1"))
	require.ErrorIs(t, err, errAnswerLost)
	require.False(t, middleware.IsPermanent(err))

	b.pool.configure(&b.config)
	_, err = b.wrap(t, b.debit)(newMessage("1"))
	require.NoError(t, err)
	require.EqualValues(t, 1, b.runs.Load())
	require.EqualValues(t, 1, b.duplicates.Load())
	require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
}

var errAnswerLost = errors.New("connection reset after COMMIT was sent")

// deafConnector's connections commit, and report that the answer was lost.
type deafConnector struct{ driver.Connector }

func (c deafConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return deafConn{conn}, err
}

type deafConn struct{ driver.Conn }

func (c deafConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	return deafTx{tx}, err
}

type deafTx struct{ driver.Tx }

func (t deafTx) Commit() error { return errors.Join(t.Tx.Commit(), errAnswerLost) }

// A connection that is lost under the handler takes everything with it.
func TestInbox_LostConnectionLeavesNothing(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		_, err := b.wrap(t, b.then(func(msg *message.Message) ([]*message.Message, error) {
			var pid int
			if err := b.pool.scan(msg.Context(), `SELECT pg_backend_pid()`, &pid); err != nil {
				return nil, err
			}
			if err := testdb.EndSession(msg.Context(), b.db.DB, pid); err != nil {
				t.Error(err)
			}
			return nil, nil
		}))(newMessage("1"))
		require.Error(t, err)
		require.False(t, middleware.IsPermanent(err))
		require.Equal(t, counts{}, b.counts(t))
		b.requireIdle(t)

		_, err = b.wrap(t, b.debit)(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

// Wherever the session ends, the message is delivered again, and nothing of it is there.
func TestInbox_SessionThatEndsInAnyStatement(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		in := b.db.Schema.Schema + "."
		_, err := b.db.ExecContext(t.Context(), `CREATE FUNCTION `+in+`end_session() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NEW; END $$`)
		require.NoError(t, err)
		for name, trigger := range map[string]string{
			"INSERT": `CREATE TRIGGER end_session BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION ` + in + `end_session()`,
			"COMMIT": `CREATE CONSTRAINT TRIGGER end_session AFTER INSERT ON %s DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION ` + in + `end_session()`,
		} {
			for _, table := range []string{b.db.Schema.Inbox(), b.effects(), b.db.Schema.Outbox()} {
				_, err := b.db.ExecContext(t.Context(), fmt.Sprintf(trigger, table))
				require.NoError(t, err)
				err = route{publish: "payment.made", publisher: b.config.Outbox}.deliver(t,
					b.wrap(t, b.then(returning(newMessage("paid")))), nil, newMessage("1"))[0]
				require.Error(t, err, "%s of %s", name, table)
				require.False(t, middleware.IsPermanent(err), "%v", err)
				require.Equal(t, counts{}, b.counts(t))
				b.requireIdle(t)
				_, err = b.db.ExecContext(t.Context(), `DROP TRIGGER end_session ON `+table)
				require.NoError(t, err)
			}
		}
		_, err = b.wrap(t, b.debit)(newMessage("1"))
		require.NoError(t, err)
		require.Equal(t, counts{keys: 1, effects: 1}, b.counts(t))
	})
}

package sqlsuite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/middleware"
)

var errHandler = errors.New("handler failed")

// The way to effects that happen once with the stock subscriber: a handler behind the
// inbox, whose attempts are undone where they fail, and whose duplicates run nothing.
func TestInboxBehindTheStockSubscriber(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	effects := `"` + db.Schema.Schema + `".effects`
	_, err := db.ExecContext(t.Context(), `CREATE TABLE `+effects+` (event_id text)`)
	require.NoError(t, err)

	const events = 5
	publisher := newPublisher(t, db.DB, db.Schema)
	for range 2 { // each event twice, as a producer sends it that did not see its commit
		for id := range events {
			require.NoError(t, publisher.Publish("orders", message.NewMessage(fmt.Sprint(id), []byte("x"))))
		}
	}

	store, err := inbox.NewStore(inbox.Config{Schema: db.Schema})
	require.NoError(t, err)
	once, err := middleware.NewInbox(middleware.InboxConfig{DB: db.DB, Store: store}, nil)
	require.NoError(t, err)
	attempts := map[string]int{}
	router := message.NewDefaultRouter(nil)
	router.AddConsumerHandler("payments", "orders", newSubscriber(t, db.DB, db.Schema), once.NoPublish(func(msg *message.Message) error {
		tx, ok := outbox.TxFromContext[*sql.Tx](msg.Context())
		if !ok {
			return outbox.ErrNoTx
		}
		if _, err := tx.ExecContext(msg.Context(), `INSERT INTO `+effects+` VALUES ($1)`, msg.UUID); err != nil {
			return err
		}
		attempts[msg.UUID]++
		if attempts[msg.UUID] < 3 {
			return errHandler // after the effect: it must be undone
		}
		return nil
	}))
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(t.Context())) }()
	requireEmptyOutbox(t, db)
	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)

	var rows, distinct int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*), count(DISTINCT event_id) FROM `+effects).Scan(&rows, &distinct))
	require.Equal(t, events, rows, "each effect once")
	require.Equal(t, events, distinct)
	for id, count := range attempts {
		require.Equal(t, 3, count, id)
	}
}

package forwarder_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A producer in SQL may write any number there. That row's failure must not undo what
// became of the others in its batch, over and over.
func TestMostAttemptsAreCountedNoFurther(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "orders", "a", "refused")
	execute(t, db, `UPDATE `+db.Schema.Outbox()+` SET attempts = 2147483647`)
	insert(t, db, "orders", "b", "b-1", "b-2")
	r := recorder{fail: func(msg forwarder.Outgoing) error {
		if msg.Message.UUID == "refused" {
			return forwarder.Refused(errTest)
		}
		return nil
	}}
	start(t, db, r.publisher(), fast(forwarder.Config{}))
	requireDrained(t, db)
	require.Equal(t, []string{"refused"}, deadLetters(t, db, `attempts = 2147483647`))
	require.Equal(t, []string{"b-1", "b-2"}, r.confirmed(), "once each")
}

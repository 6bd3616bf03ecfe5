package inbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Outboxes that share a schema share its inbox, or have one each.
func TestOutboxesShareAnInboxOrNot(t *testing.T) {
	t.Parallel()
	first := testdb.New(t)
	second, third := first.Schema, first.Schema
	second.Name = "Second"
	third.Name, third.InboxName = "third", "Inbox of the third"
	key := inbox.Key{Consumer: "payments", EventID: "order-1"}
	fresh := []bool{}
	for _, s := range []*inbox.Config{{Schema: first.Schema}, {Schema: second}, {Schema: third}} {
		require.NoError(t, s.Schema.Migrate(t.Context(), first.DB))
		store, err := inbox.NewStore(*s)
		require.NoError(t, err)
		b := testBundle{db: first, pool: first.DB, store: store}
		fresh = append(fresh, b.recordCommitted(t, key))
	}
	require.Equal(t, []bool{true, false, true}, fresh)
}

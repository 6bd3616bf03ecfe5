package pgbouncertest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

// administer does everything that an operator does.
func administer(t *testing.T, db database, m mode) {
	t.Helper()
	admin, err := forwarder.NewAdmin(db.open(t, m), db.schema)
	require.NoError(t, err)
	exec := func(statement string, args ...any) {
		t.Helper()
		_, err := db.direct.ExecContext(t.Context(), statement, args...)
		require.NoError(t, err)
	}
	bury := func(id string, blocks bool) {
		exec(`INSERT INTO `+db.schema.DeadLetters()+` (seq, id, destination, payload, metadata, created_at, attempts, error, error_group, blocks)
			VALUES (nextval(pg_get_serial_sequence($3, 'seq')), $1, 'orders', 'x', '{}', now(), 1, 'too large', 'too large', $2)`, id, blocks, db.schema.Outbox())
	}
	bury("free", false)
	bury("blocks", true)
	bury("discarded", true)
	bury("kept", true)
	exec(`INSERT INTO ` + db.schema.Outbox() + ` (id, destination, payload, next_attempt_at, attempts, last_error)
		VALUES ('fails', 'orders', 'x', now() + interval '1 hour', 1, 'refused')`)

	stats, err := admin.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, forwarder.Count{Rows: 1}, stats.Backlog)
	require.Equal(t, forwarder.Count{Rows: 4}, stats.DeadLetters)
	require.Len(t, stats.Blocked, 3)
	require.Len(t, stats.Failing, 1)

	var seen []string
	for letter, err := range admin.DeadLetters(t.Context(), forwarder.Filter{From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}) {
		require.NoError(t, err)
		require.Equal(t, "x", string(letter.Payload))
		require.WithinDuration(t, time.Now(), letter.DeadAt, time.Hour)
		seen = append(seen, letter.EventID)
	}
	require.Equal(t, []string{"free", "blocks", "discarded", "kept"}, seen)
	groups, err := admin.DeadLetterGroups(t.Context(), forwarder.Filter{ErrorGroup: "too large"})
	require.NoError(t, err)
	require.Len(t, groups, 1)

	n, err := admin.Replay(t.Context(), forwarder.Filter{EventIDs: []string{"free", "blocks"}, Destination: "orders"}, forwarder.BulkOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	n, err = admin.Discard(t.Context(), forwarder.Filter{EventIDs: []string{"discarded"}}, forwarder.BulkOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.Equal(t, 3, db.count(t, db.schema.Outbox(), `published_at IS NULL`))

	exec(`UPDATE ` + db.schema.Outbox() + ` SET published_at = now() - interval '8 days', created_at = now() - interval '9 days', next_attempt_at = NULL`)
	exec(`UPDATE ` + db.schema.DeadLetters() + ` SET dead_at = now() - interval '8 days', blocks = false`)
	n, err = admin.DeletePublished(t.Context(), 7*24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	n, err = admin.DeleteDeadLetters(t.Context(), 7*24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

package forwarder

import (
	"strings"
	"testing"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// However large what is locked is, no more comes from Postgres than fits into a batch: a row of more
// than its share comes without its payload and metadata first.
func TestLargeRowsComeWhenItIsKnownThatTheyFit(t *testing.T) {
	t.Parallel()
	orderings(t, func(t *testing.T, ordering Ordering) {
		t.Helper()
		db := testdb.New(t)
		large := strings.Repeat("x", 5000)
		_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload, payload_bytes, metadata) VALUES
			('text', 'orders', $1, NULL, '{"a":"b"}'), ('bytes', 'orders', NULL, '\x00ff'::bytea || $1::bytea, '{}'),
			('metadata', 'orders', 'small', NULL, jsonb_build_object('large', $1::text)), ('small', 'orders', '', NULL, '{}'),
			('too much', 'orders', $1, NULL, '{}')`, large)
		require.NoError(t, err)
		w := newTestWorker(t, db, Config{Workers: 1, Ordering: ordering, BatchSize: 10, BatchBytes: 20_000})

		tx := begin(t, w)
		head, err := w.claimer.lockHead(t.Context(), tx, w.claimer.flow.query,
			pq.StringArray{}, 0, window, 1, pq.Int64Array{0}, pq.Int64Array{}, 10, w.claimer.inlineBytes())
		require.NoError(t, err)
		require.Len(t, head, 5)
		for _, r := range head {
			require.Equal(t, r.id == "small", r.outgoing.Message != nil, r.id)
		}
		require.NoError(t, tx.Rollback())

		taken, err := w.claimer.claim(t.Context(), begin(t, w), request{lane: anyLane})
		require.NoError(t, err)
		require.Len(t, taken.rows, 4)
		for i, want := range []struct{ id, payload, key, value string }{
			{"text", large, "a", "b"}, {"bytes", "\x00\xff" + large, "", ""}, {"metadata", "small", "large", large}, {"small", "", "", ""},
		} {
			msg := taken.rows[i].outgoing.Message
			require.Equal(t, want.id, msg.UUID)
			require.Equal(t, want.payload, string(msg.Payload))
			require.Equal(t, want.value, msg.Metadata.Get(want.key))
		}
	})
}

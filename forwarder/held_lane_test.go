package forwarder_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// While the first row of all is another's, with its lane or without it, those in free lanes go on,
// however few workers look at how few lanes at a time.
func TestRowsInFreeLanesGoOn(t *testing.T) {
	t.Parallel()
	for name, lane := range map[string]string{
		"a replica that hangs": `SELECT pg_catalog.pg_advisory_xact_lock($1::bigint)`,
		"an operator":          `SELECT $1::bigint`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
			insertInLane := func(id string, lane int) {
				_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
					SELECT $1, 'orders', n::text, 'x' FROM generate_series(1, 10000) AS n
					WHERE ('x' || substr(md5('orders' || E'\x1f' || n), 1, 8))::bit(32)::integer & 63 = $2 LIMIT 1`, id, lane)
				require.NoError(t, err)
			}
			insertInLane("held", 0)
			other, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			t.Cleanup(func() { _ = other.Rollback() })
			_, err = other.ExecContext(t.Context(), lane, db.Schema.LockBase())
			require.NoError(t, err)
			_, err = other.ExecContext(t.Context(), `SELECT FROM `+db.Schema.Outbox()+` FOR UPDATE`)
			require.NoError(t, err)
			r := &recorder{}
			start(t, db, r.publisher(), forwarder.Config{Workers: 4})
			for n, id := range []string{"a", "b", "c"} {
				insertInLane(id, 40+n)
				require.Eventually(t, func() bool { return len(r.confirmed()) == n+1 }, 30*time.Second, 5*time.Millisecond)
			}
			require.NoError(t, other.Rollback())
			require.Eventually(t, func() bool { return len(r.confirmed()) == 4 }, 30*time.Second, 5*time.Millisecond)
		})
	}
}

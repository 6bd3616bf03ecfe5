package pgbouncertest_test

import (
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

// Nothing that this module does leaves a trace in the session, where the pooler's next
// client would find it: everything runs in one session, which is as it was before.
func TestSessionsStayAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{
		{name: "pq", driver: "postgres"},
		{name: "pgx exec", driver: "pgx", setting: "default_query_exec_mode", value: "exec"}, // the others leave prepared statements, by intent
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			db := newHostile(t)
			db.pooledDSN = db.directDSN // past PgBouncer: a session is a connection
			one := db.openOne(t, m)
			before := session(t, one)

			require.NoError(t, db.schema.Migrate(t.Context(), one))
			require.Equal(t, before, session(t, one), "Migrate")
			require.NoError(t, db.schema.Check(t.Context(), one))
			require.Equal(t, before, session(t, one), "Check")
			var msgs []*message.Message
			for n := 1; n <= 50; n++ {
				msgs = append(msgs, newMessage("a", n))
			}
			require.NoError(t, publish(t.Context(), one, db.schema, msgs...))
			require.NoError(t, publish(t.Context(), one, db.schema, newMessage("b", 1)))
			require.Equal(t, before, session(t, one), "PublishTx")

			for _, ordering := range []forwarder.Ordering{forwarder.PerKey, forwarder.None} {
				require.NoError(t, publish(t.Context(), db.direct, db.schema, newMessage("c", 5)))
				before = drain(t, db, one, ordering)
			}

			var duplicates atomic.Int64
			_, err := db.direct.ExecContext(t.Context(), `CREATE TABLE events.effects (event_id text NOT NULL)`)
			require.NoError(t, err)
			handle := db.consumer(t, one, &duplicates)
			for range 2 {
				for n := range events {
					require.NoError(t, handle(message.NewMessage(fmt.Sprint(n), nil)))
				}
			}
			require.Equal(t, before, session(t, one), "Inbox")
			requireRetention(t, db, one)
			require.Equal(t, before, session(t, one), "DeleteOlderThan")
		})
	}
}

// drain looks at the session of a forwarder that has sent everything and still runs: as
// it ends, it closes the connection on which it looks for more. It returns the next one.
func drain(t *testing.T, db database, one *sql.DB, ordering forwarder.Ordering) (next string) {
	t.Helper()
	t.Run(string(ordering), func(t *testing.T) {
		before := session(t, one)
		var published recorder
		db.startForwarder(t, one, published.publisher(), forwarder.Config{Ordering: ordering, Workers: 1})
		eventually(t, func() bool { return db.count(t, db.schema.Outbox(), `published_at IS NULL`) == 0 }, "it drains the outbox")
		require.NotZero(t, published.refusals())
		require.Equal(t, before, session(t, one))
	})
	return session(t, one)
}

// session describes all of a session that outlives a transaction.
func session(t *testing.T, one *sql.DB) (state string) {
	t.Helper()
	require.Equal(t, 1, one.Stats().MaxOpenConnections)
	err := one.QueryRowContext(t.Context(), `SELECT pg_catalog.jsonb_pretty(pg_catalog.jsonb_build_object(
		'backend', pg_catalog.pg_backend_pid(),
		'settings', (SELECT pg_catalog.jsonb_object_agg(name, setting) FROM pg_catalog.pg_settings
			WHERE name NOT LIKE 'plpgsql.%'), -- they are listed once the language is loaded
		'prepared', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_statements WHERE name <> ''),
		'cursors', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_cursors WHERE name <> ''),
		'locks', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks WHERE pid = pg_catalog.pg_backend_pid() AND locktype = 'advisory'),
		'channels', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_listening_channels()),
		'temporary', pg_catalog.pg_my_temp_schema()::bigint))`).Scan(&state)
	require.NoError(t, err)
	return state
}

package forwarder_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Reading, and everything else, with the grants of the documentation and no more.
func TestAdminGrants(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := setupAdmin(t, "postgres")
			admin := func(grants ...string) *forwarder.Admin {
				t.Helper()
				for i := range grants {
					grants[i] = `GRANT ` + in(b.db, grants[i]) + ` TO {role}`
				}
				_, dsn := b.db.NewRole(t, grants...)
				admin, err := forwarder.NewAdmin(testdb.Open(t, driver, dsn), b.db.Schema)
				require.NoError(t, err)
				return admin
			}
			reader := admin(`USAGE ON SCHEMA {schema}`,
				`SELECT ON {schema}.outbox, {schema}.outbox_dead_letters, {schema}.outbox_settings, {schema}.outbox_absences`)
			operator := admin(`USAGE ON SCHEMA {schema}`, `SELECT ON {schema}.outbox_settings`,
				`SELECT, INSERT, UPDATE, DELETE ON {schema}.outbox`, `SELECT, UPDATE, DELETE ON {schema}.outbox_dead_letters`)
			insert(t, b.db, "orders", "a", ids("a", 6)...)
			b.bury(t, `seq <= 2`, false)
			b.bury(t, `seq <= 4`, true)

			stats, err := reader.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, forwarder.Count{Rows: 4}, stats.DeadLetters)
			n, err := reader.Replay(t.Context(), everything, forwarder.BulkOptions{DryRun: true})
			require.NoError(t, err)
			require.EqualValues(t, 4, n)
			for _, err := range reader.DeadLetters(t.Context(), forwarder.Filter{}) {
				require.NoError(t, err)
			}
			_, err = reader.Replay(t.Context(), everything, forwarder.BulkOptions{})
			require.ErrorContains(t, err, "42501")

			for _, id := range ids("a", 4)[1:] {
				n, err = operator.Replay(t.Context(), forwarder.Filter{EventIDs: []string{id}}, forwarder.BulkOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 1, n)
			}
			n, err = operator.Discard(t.Context(), everything, forwarder.BulkOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			_, err = operator.DeletePublished(t.Context(), time.Hour)
			require.NoError(t, err)
			_, err = operator.DeleteDeadLetters(t.Context(), time.Hour)
			require.NoError(t, err)
		})
	}
}

package forwarder_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// While rows can be claimed and not be settled, each worker publishes them once, not at
// each attempt: what a CREATE INDEX locks for an hour must not arrive a hundred times.
func TestWhatCannotBeSettledIsNotPublishedAgain(t *testing.T) {
	t.Parallel()
	for name, obstacle := range map[string]struct{ complaint, stand, yield string }{
		"a lock": {
			complaint: "(55P03)", stand: `BEGIN; LOCK TABLE {schema}.outbox IN SHARE MODE`, yield: `ROLLBACK`,
		},
		"a foreign key": {
			complaint: "(23503)",
			stand: `CREATE TABLE {schema}.theirs AS SELECT seq FROM {schema}.outbox;
				ALTER TABLE {schema}.theirs ADD FOREIGN KEY (seq) REFERENCES {schema}.outbox`,
			yield: `DROP TABLE {schema}.theirs`,
		},
		"a trigger": {
			complaint: "claimed rows are gone",
			stand: `CREATE FUNCTION {schema}.keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$;
				CREATE TRIGGER keep BEFORE DELETE ON {schema}.outbox FOR EACH ROW EXECUTE FUNCTION {schema}.keep()`,
			yield: `DROP TRIGGER keep ON {schema}.outbox`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const workers, attempts = 2, 8
			db := testdb.New(t)
			insert(t, db, "orders", "a", "a-1", "a-2")
			operator, err := db.Conn(t.Context())
			require.NoError(t, err)
			defer operator.Close()
			_, err = operator.ExecContext(t.Context(), in(db, obstacle.stand))
			require.NoError(t, err)

			b := runWithLog(t, db, forwarder.Config{Workers: workers, DatabaseTimeout: time.Second})
			eventually(t, func() bool { return len(b.log.errors())+b.log.repeated() >= attempts })
			require.Contains(t, strings.Join(b.log.errors(), "\n"), obstacle.complaint)
			require.LessOrEqual(t, len(b.recorder.confirmed()), 2*workers)

			_, err = operator.ExecContext(t.Context(), in(db, obstacle.yield))
			require.NoError(t, err)
			requireDrained(t, db)
			requireFirstDeliveries(t, []string{"a-1", "a-2"}, b.recorder.unit("orders", "a"))
		})
	}
}

// requireFirstDeliveries compares without repetitions.
func requireFirstDeliveries(t *testing.T, want, got []string) {
	t.Helper()
	var first []string
	for _, id := range got {
		if !slices.Contains(first, id) {
			first = append(first, id)
		}
	}
	require.Equal(t, want, first)
}

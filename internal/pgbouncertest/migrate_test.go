package pgbouncertest_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/schema"
)

func migrateAndCheck(t *testing.T, db database, m mode) {
	t.Helper()
	require.ErrorIs(t, db.schema.Check(t.Context(), db.open(t, m)), schema.ErrNotMigrated)
	var processes sync.WaitGroup
	for _, process := range db.openMany(t, m, 2*poolSize) {
		processes.Go(func() {
			if err := db.schema.Migrate(t.Context(), process); err != nil {
				t.Errorf("migrate: %v", err)
			}
			for range 20 {
				if err := db.schema.Check(t.Context(), process); err != nil {
					t.Errorf("check: %v", err)
				}
			}
		})
	}
	processes.Wait()
	requireNothingHostile(t, db)
}

// requireNothingHostile looks for what a table's definition refers to.
func requireNothingHostile(t *testing.T, db database) {
	t.Helper()
	var definitions string
	err := db.direct.QueryRowContext(t.Context(), `SELECT pg_catalog.string_agg(definition, E'\n') FROM (
		SELECT pg_catalog.pg_get_constraintdef(oid) FROM pg_catalog.pg_constraint WHERE connamespace = 'events'::pg_catalog.regnamespace
		UNION ALL SELECT pg_catalog.pg_get_expr(adbin, adrelid) FROM pg_catalog.pg_attrdef
	) AS d (definition)`).Scan(&definitions)
	require.NoError(t, err)
	require.Contains(t, definitions, "num_nonnulls")
	require.NotContains(t, definitions, "hostile")
}

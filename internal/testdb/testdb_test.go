package testdb_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// With each driver, what is not qualified is not found.
func TestDSNHasAnEmptySearchPath(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		var schemas string
		err := testdb.Open(t, driver, testdb.DSN(t)).QueryRowContext(t.Context(), `SELECT current_schemas(false)::text`).Scan(&schemas)
		require.NoError(t, err)
		require.Equal(t, "{}", schemas, driver)
	}
}

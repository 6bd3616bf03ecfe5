package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// Else a stream and a table would not have the same lanes.
func TestUnitHashIsTheTables(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, unit := range []struct{ destination, key, id string }{
		{"orders", "", "1"}, {"orders", "a", "2"}, {"orders", "b", "3"}, {"é✓𝄞 \\ ' \"", "\t\n", "4"}, {"o", "rders", "5"},
	} {
		var hash int64
		require.NoError(t, db.QueryRowContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			VALUES ($1, $2, $3, 'x') RETURNING unit_hash`, unit.id, unit.destination, unit.key).Scan(&hash))
		r := rowOf(Change{ID: unit.id, Destination: unit.destination, PartitionKey: unit.key, Metadata: []byte(`{}`)})
		require.Equal(t, hash, r.unitHash, "%q", unit)
	}
}

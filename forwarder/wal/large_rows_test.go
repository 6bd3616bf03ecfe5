package wal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// However large rows are, only so many bytes of them are read ahead while the broker is away.
func TestManyLargeRows(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	const rows, size, most = 300, 1 << 20, 128 << 20
	db := testdb.New(t)
	var b limited
	b.allow(rows)
	run(t, db, &b, forwarder.Config{Source: newSource(t, db)})
	requireStreaming(t, db)
	b.allow(0)
	used := peak(t, func() {
		tx := begin(t, db)
		exec(t, tx, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			SELECT 'a-' || n, 'orders', 'a', repeat('0123456789abcdef', $1::integer / 16) FROM generate_series(1, $2::integer) AS n`, size, rows)
		require.NoError(t, tx.Commit())
		requireReports(t, db, 3)
		b.allow(rows)
		requireDrained(t, db)
	})
	t.Logf("%d MiB of the heap for %d rows of %d MiB", used>>20, rows, size>>20)
	require.Len(t, b.of("a"), rows)
	require.Less(t, used, uint64(most))
}

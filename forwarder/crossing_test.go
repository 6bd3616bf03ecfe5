package forwarder_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// writeCrossing writes rows key-1-1, key-1-2, … of each unit one after another, as
// transactions do that hold a lock on an aggregate. The transactions of different units
// overlap: each draws its seq, stays open for a while, and commits after others that
// drew a higher one.
func writeCrossing(t *testing.T, db *testdb.DB, destinations []string, keys, perKey int) {
	t.Helper()
	var writers errgroup.Group
	for _, destination := range destinations {
		for _, key := range ids("key", keys) {
			writers.Go(func() error {
				for _, id := range ids(destination+key, perKey) {
					if err := writeSlowly(t, db, id, destination, key); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	assert.NoError(t, writers.Wait())
}

func writeSlowly(t *testing.T, db *testdb.DB, id, destination, key string) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
		VALUES ($1, $2, $3, 'x')`, id, destination, key); err != nil {
		return err
	}
	pause := time.Duration(rand.ExpFloat64() * float64(2*time.Millisecond))
	if rand.IntN(50) == 0 {
		pause += 200 * time.Millisecond
	}
	if _, err := tx.ExecContext(t.Context(), `SELECT pg_sleep($1)`, pause.Seconds()); err != nil {
		return err
	}
	return tx.Commit()
}

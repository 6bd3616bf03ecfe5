package forwarder_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// Two outboxes of one database: each forwarder sends its own rows, and does so while the
// other one holds all lanes of its outbox.
func TestNeighboursDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("o", 62)
	for name, tables := range map[string][2]schema.Postgres{
		"one schema":           {{Name: "outbox"}, {Name: "Outbox"}},
		"one schema, 63 bytes": {{Name: long + "1"}, {Name: long + "2"}},
		"two schemas":          {{Name: "outbox"}, {Schema: "second ", Name: "outbox"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := neighbours(t, tables)
			for _, db := range []*testdb.DB{first, second} {
				insert(t, db, "orders", "a", ids(db.Schema.Name, 5)...)
			}
			var (
				r1, r2         recorder
				record         = r1.publisher()
				held, released = make(chan struct{}), make(chan struct{})
				hold           = sync.OnceFunc(func() { close(held) })
				release        = sync.OnceFunc(func() { close(released) })
			)
			start(t, first, publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
				hold()
				<-released
				return record(ctx, msgs)
			}), fast(forwarder.Config{Workers: 1}))
			t.Cleanup(release)
			eventually(t, func() bool {
				select {
				case <-held:
					return true
				default:
					return false
				}
			})

			start(t, second, r2.publisher(), fast(forwarder.Config{}))
			requireDrained(t, second)
			require.Equal(t, ids(second.Schema.Name, 5), r2.confirmed())
			require.Empty(t, r1.confirmed())

			release()
			requireDrained(t, first)
			require.Equal(t, ids(first.Schema.Name, 5), r1.confirmed())
			require.Equal(t, ids(second.Schema.Name, 5), r2.confirmed())
		})
	}
}

// neighbours migrates both; schemas are made unique and are dropped after the test.
func neighbours(t *testing.T, tables [2]schema.Postgres) (first, second *testdb.DB) {
	t.Helper()
	db := testdb.NewEmpty(t)
	var both []*testdb.DB
	for _, s := range slices.Clone(tables[:]) {
		s.Schema += db.Schema.Schema
		db.DropSchema(t, s.Schema)
		require.NoError(t, s.Migrate(t.Context(), db.DB))
		both = append(both, &testdb.DB{DB: testdb.Open(t, "postgres", db.DSN), Schema: s, DSN: db.DSN})
	}
	return both[0], both[1]
}

package forwarder_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A forwarder that connected while the address still led to the old primary, by now a standby,
// does not stay with it.
func TestFormerPrimaryIsLeft(t *testing.T) {
	t.Parallel()
	for name, newConnector := range map[string]func(dsn string) (driver.Connector, error){
		"postgres": func(dsn string) (driver.Connector, error) { return pq.NewConnector(dsn) },
		"pgx":      stdlib.GetDefaultDriver().(driver.DriverContext).OpenConnector,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			insert(t, db, "orders", "a", "a-1")
			connector := &movedAddress{newConnector: newConnector}
			standby := testdb.StartStandby(t, db.Schema)
			connector.leadsTo.Store(&standby)
			moved := &testdb.DB{DB: sql.OpenDB(connector), Schema: db.Schema, DSN: db.DSN}
			t.Cleanup(func() { require.NoError(t, moved.Close()) })
			moved.SetMaxOpenConns(2) // no further one may come to the rescue by chance
			moved.SetMaxIdleConns(2)
			b := runWithLog(t, moved, forwarder.Config{})
			eventually(t, func() bool { return b.log.repeated() > 2 })
			require.Contains(t, b.log.errors()[0], "Database is read-only, messages stay in the outbox: ")
			require.Empty(t, b.recorder.confirmed())

			connector.leadsTo.Store(&db.DSN)
			requireDrained(t, db)
			require.Equal(t, []string{"a-1"}, b.recorder.confirmed())
		})
	}
}

// movedAddress is a name that leads to one server first, and to another later. Connections
// stay where they are.
type movedAddress struct {
	newConnector func(dsn string) (driver.Connector, error)
	leadsTo      atomic.Pointer[string]
}

func (m *movedAddress) Connect(ctx context.Context) (driver.Conn, error) {
	connector, err := m.newConnector(*m.leadsTo.Load())
	if err != nil {
		return nil, err
	}
	return connector.Connect(ctx)
}

func (m *movedAddress) Driver() driver.Driver { return nil }

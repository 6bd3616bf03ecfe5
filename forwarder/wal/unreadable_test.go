package wal_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// A slot is made in three steps, each of which waits for the transactions before it. Postgres forgets a table that was
// made in the first and committed in the second, and fails at a row of it ("could not map filenode"), each time anew.
func TestSlotThatCannotBeReadIsMadeAnew(t *testing.T) {
	t.Parallel()
	db := testdb.StartServer(t, schema.Postgres{Schema: "own"}).DB
	source := newSource(t, db)
	waitsFor := func(one, other numbered) {
		eventually(t, func() bool {
			return count(t, db, `pg_locks AS l JOIN pg_replication_slots AS s ON s.active_pid = l.pid
				WHERE NOT l.granted AND l.locktype = 'transactionid' AND l.transactionid::text IN ('`+one.id+`', '`+other.id+`')`) == 1
		})
	}
	first := beginWithID(t, db)
	made := make(chan error, 1)
	go func() { made <- source.Prepare(context.WithoutCancel(t.Context())) }()
	waitsFor(first, first)
	table := beginWithID(t, db)
	exec(t, table, `CREATE TABLE own.made_meanwhile (id integer)`)
	last := beginWithID(t, db)
	require.NoError(t, first.Commit())
	waitsFor(table, last)
	require.NoError(t, table.Commit())
	row := beginWithID(t, db)
	exec(t, row, `INSERT INTO own.made_meanwhile VALUES (1)`)
	require.NoError(t, last.Commit())
	require.NoError(t, <-made)
	require.NoError(t, row.Commit())

	var b broker
	start(t, db, &b, source)
	insertKeyed(t, db, db, "orders", "a", ids("a", 3)...)
	eventually(t, func() bool { return len(b.of("a")) == 3 })
	requireStreaming(t, db)
	require.Equal(t, ids("a", 3), b.of("a"))
}

// numbered is a transaction that has its number, which others wait for.
type numbered struct {
	*sql.Tx

	id string
}

func beginWithID(t *testing.T, db *testdb.DB) numbered {
	t.Helper()
	tx := numbered{Tx: begin(t, db)}
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT pg_current_xact_id()::text`).Scan(&tx.id))
	return tx
}

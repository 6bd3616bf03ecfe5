package schema_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

func TestCaptureOfEveryStatementThatWrites(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns+`, loud text GENERATED ALWAYS AS (status || '!') STORED`)
	c.apply(t, schema.Capture{Payload: brief + ` || ' ' || changed.loud`})
	const upsert = `INSERT INTO {orders} VALUES (1, 'paid') ON CONFLICT (id) DO `
	c.run(t, `INSERT INTO {orders} VALUES (1, 'new') ON CONFLICT DO NOTHING`, upsert+`NOTHING`, upsert+`UPDATE SET status = EXCLUDED.status`)
	require.Equal(t, []string{"INSERT >new new!", "UPDATE new>paid paid!"}, c.payloads(t))

	// Not lib/pq: its COPY does not take what Postgres 13 reports of settings meanwhile.
	_, err := testdb.OpenNative(t, c.DSN, nil).CopyFrom(t.Context(), pgx.Identifier{c.Schema.Schema, "orders"}, []string{"id", "status"},
		pgx.CopyFromRows([][]any{{10, "copied"}, {11, "copied"}}))
	require.NoError(t, err)
	require.Equal(t, []string{"INSERT >copied copied!", "INSERT >copied copied!"}, c.payloads(t))

	var version int
	require.NoError(t, c.QueryRowContext(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&version))
	if version >= 15 {
		c.run(t, `MERGE INTO {orders} AS o USING (VALUES (1), (2)) AS v (id) ON o.id = v.id
			WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, status) VALUES (v.id, 'merged')`)
		require.ElementsMatch(t, []string{"DELETE paid> paid!", "INSERT >merged merged!"}, c.payloads(t))
	}
	c.run(t, `TRUNCATE {orders}`)
	require.Empty(t, c.payloads(t), "documented")
}

func TestCaptureOfCascades(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns+`, parent bigint REFERENCES {orders} ON DELETE CASCADE`)
	c.apply(t, schema.Capture{})
	c.run(t, `INSERT INTO {orders} VALUES (1, 'new', NULL), (2, 'new', 1)`)
	c.changes(t)
	c.run(t, `DELETE FROM {orders} WHERE id = 1`)
	var keys []string
	for _, row := range c.changes(t) {
		keys = append(keys, row.Key)
	}
	require.ElementsMatch(t, []string{"1", "2"}, keys)
}

// Partitions may have their columns in another order. A row that moves is deleted from one and
// inserted into the other, which Postgres says of it.
func TestCaptureOfPartitions(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, `id int, status text, PRIMARY KEY (id, status)) PARTITION BY LIST (status`)
	c.run(t, `CREATE TABLE {schema}.made_before (status text NOT NULL, dropped int, id int NOT NULL)`,
		`ALTER TABLE {schema}.made_before DROP COLUMN dropped`,
		`ALTER TABLE {orders} ATTACH PARTITION {schema}.made_before FOR VALUES IN ('new')`)
	c.apply(t, schema.Capture{PartitionKey: `changed.id`, Payload: brief})
	c.run(t, `CREATE TABLE {schema}.made_after PARTITION OF {orders} DEFAULT`,
		`INSERT INTO {orders} VALUES (1, 'new'), (2, 'paid')`, `UPDATE {orders} SET status = 'sent' WHERE id = 2`,
		`UPDATE {orders} SET status = 'paid' WHERE id = 1`)
	require.Equal(t, []change{
		{"orders", "1", "INSERT >new", "{}"},
		{"orders", "2", "INSERT >paid", "{}"},
		{"orders", "2", "UPDATE paid>sent", "{}"},
		{"orders", "1", "DELETE new>", "{}"},
		{"orders", "1", "INSERT >paid", "{}"},
	}, c.changes(t))
}

// The event of a change comes before those of what other triggers do about it.
func TestCaptureStandsBeforeOtherTriggers(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	c.run(t, `CREATE FUNCTION {schema}.accept() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN UPDATE `+c.table+` SET status = 'accepted' WHERE id = new.id; RETURN NULL; END $$`,
		`CREATE TRIGGER "A_accept" AFTER INSERT ON {orders} FOR EACH ROW EXECUTE FUNCTION {schema}.accept()`)
	c.apply(t, schema.Capture{Payload: brief})
	c.run(t, `INSERT INTO {orders} VALUES (1, 'new')`)
	require.Equal(t, []string{"INSERT >new", "UPDATE new>accepted"}, c.payloads(t))
}

func TestCaptureIsUndoneWithItsChange(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	c.apply(t, schema.Capture{Payload: brief})
	tx, err := c.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	for _, statement := range []string{
		`INSERT INTO {orders} VALUES (1, 'new')`, `SAVEPOINT s`, `UPDATE {orders} SET status = 'paid'`, `ROLLBACK TO s`,
	} {
		_, err := tx.ExecContext(t.Context(), c.fill(statement))
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{"INSERT >new"}, c.payloads(t))
}

// Who writes to the table needs no right on the outbox, and cannot have the function write for
// a table of his own.
func TestCaptureNeedsNoRightOfTheWriter(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	_, dsn := c.NewRole(t, c.fill(`GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}`), `GRANT INSERT ON `+c.table+` TO {role}`)
	c.apply(t, schema.Capture{Payload: brief})
	writer := testdb.Open(t, "postgres", dsn)
	_, err := writer.ExecContext(t.Context(), c.fill(`INSERT INTO {orders} VALUES (1, 'new')`))
	require.NoError(t, err)
	require.Equal(t, []string{"INSERT >new"}, c.payloads(t))

	var function string
	require.NoError(t, c.QueryRowContext(t.Context(), c.fill(`SELECT tgfoid::regproc FROM pg_trigger WHERE tgrelid = '{orders}'::regclass`)).Scan(&function))
	_, err = writer.ExecContext(t.Context(), c.fill(`CREATE TABLE {schema}.theirs (`+ordersColumns+`)`))
	require.NoError(t, err)
	_, err = writer.ExecContext(t.Context(), c.fill(`CREATE TRIGGER forged AFTER INSERT ON {schema}.theirs FOR EACH ROW EXECUTE FUNCTION `+function+`()`))
	requireState(t, err, "42501")
}

// The documented grants suffice to apply, and each is needed.
func TestCaptureGrants(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	grants := []string{`USAGE ON SCHEMA {schema}`, `CREATE ON SCHEMA {schema}`, `INSERT ON {outbox}`, `TRIGGER ON {orders}`}
	for without := -1; without < len(grants); without++ {
		statements := []string{}
		for i, grant := range grants {
			if i != without {
				statements = append(statements, c.fill(`GRANT `+grant)+` TO {role}`)
			}
		}
		_, dsn := c.NewRole(t, statements...)
		trigger, err := apply(t, testdb.Open(t, "postgres", dsn), c.Schema, c.orders(schema.Capture{}))
		if without >= 0 {
			requireState(t, err, "42501")
			require.NotErrorIs(t, err, schema.ErrInvalidCapture)
			continue
		}
		require.NoError(t, err)
		c.run(t, `INSERT INTO {orders} VALUES (1, 'new')`)
		require.Len(t, c.changes(t), 1)
		c.run(t, trigger.DropSQL())
	}
}

func requireState(t *testing.T, err error, want string) {
	t.Helper()
	var state interface{ SQLState() string }
	require.ErrorAs(t, err, &state)
	require.Equal(t, want, state.SQLState())
}

// A subscriber of logical replication fires what is ENABLE ALWAYS.
func TestCaptureInReplication(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	trigger := c.apply(t, schema.Capture{Payload: brief})
	replicate := func(statement string) {
		tx, err := c.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.ExecContext(t.Context(), `SET LOCAL session_replication_role = replica`)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), c.fill(statement))
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
	}
	replicate(`INSERT INTO {orders} VALUES (1, 'new')`)
	require.Empty(t, c.payloads(t))
	var name string
	require.NoError(t, c.QueryRowContext(t.Context(), c.fill(`SELECT quote_ident(tgname) FROM pg_trigger WHERE tgrelid = '{orders}'::regclass`)).Scan(&name))
	c.run(t, `ALTER TABLE {orders} ENABLE ALWAYS TRIGGER `+name)
	c.apply(t, schema.Capture{Payload: brief})
	replicate(`INSERT INTO {orders} VALUES (2, 'new')`)
	require.Equal(t, []string{"INSERT >new"}, c.payloads(t), "Apply has left it as it was")

	c.run(t, `ALTER TABLE {orders} DISABLE TRIGGER `+name)
	c.apply(t, schema.Capture{Payload: brief})
	c.run(t, `INSERT INTO {orders} VALUES (3, 'new')`)
	require.Equal(t, []string{"INSERT >new"}, c.payloads(t), "Apply has enabled it")

	for range 2 {
		tx, err := c.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, trigger.Drop(t.Context(), tx))
		require.NoError(t, tx.Commit())
	}
	c.run(t, `DELETE FROM {orders}`)
	require.Empty(t, c.payloads(t))
	var left int
	require.NoError(t, c.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_proc WHERE proname LIKE 'watermill_outbox_capture%' AND pronamespace = $1::regnamespace`,
		c.Schema.Schema).Scan(&left))
	require.Zero(t, left)
}

// Apply as a service starts takes no lock on a table whose trigger is there, and SQL is what it
// runs otherwise.
func TestCaptureApplyDoesNothingWhereNothingIsToDo(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	trigger := c.apply(t, schema.Capture{Payload: brief})
	writer, err := c.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer writer.Rollback()
	_, err = writer.ExecContext(t.Context(), c.fill(`INSERT INTO {orders} VALUES (1, 'new')`))
	require.NoError(t, err)

	tx, err := c.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), `SET LOCAL lock_timeout = '10ms'`)
	require.NoError(t, err)
	require.NoError(t, trigger.Apply(t.Context(), tx))
	_, err = tx.ExecContext(t.Context(), trigger.SQL())
	requireState(t, err, "55P03")
	require.NoError(t, writer.Commit())
	require.NoError(t, tx.Rollback())
	c.changes(t)

	c.run(t, trigger.DropSQL(), trigger.SQL(), trigger.SQL(), `DELETE FROM {orders}`)
	require.Equal(t, []string{"DELETE new>"}, c.payloads(t))
}

// A session keeps its plan for the types that it has seen, and its writes fail, unless the
// trigger is applied again with the change of type.
func TestCaptureAppliedAgainWithAnotherType(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, `id int PRIMARY KEY, status text`)
	c.apply(t, schema.Capture{Payload: brief})
	session, err := c.Conn(t.Context())
	require.NoError(t, err)
	defer session.Close()
	write := func(statement string) error {
		_, err := session.ExecContext(t.Context(), c.fill(statement))
		return err
	}
	require.NoError(t, write(`INSERT INTO {orders} VALUES (1, 'new')`))

	tx, err := c.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), c.fill(`ALTER TABLE {orders} ALTER COLUMN id TYPE bigint`))
	require.NoError(t, err)
	trigger, err := c.Schema.CaptureTrigger(t.Context(), tx, c.orders(schema.Capture{Payload: brief}))
	require.NoError(t, err)
	require.NoError(t, trigger.Apply(t.Context(), tx))
	require.NoError(t, tx.Commit())
	require.NoError(t, write(`UPDATE {orders} SET status = 'paid'`))

	c.run(t, `ALTER TABLE {orders} ADD COLUMN note text`)
	require.NoError(t, write(`UPDATE {orders} SET note = 'x'`), "a new column needs nothing")
	require.Equal(t, []string{"INSERT >new", "UPDATE new>paid", "UPDATE paid>paid"}, c.payloads(t))
}

package schema_test

import (
	"database/sql"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// captured is a test's schema with a business table in it.
type captured struct {
	*testdb.DB

	table string // qualified and quoted
}

const ordersColumns = `id bigint PRIMARY KEY, status text NOT NULL`

func newCaptured(t *testing.T, columns string) captured {
	t.Helper()
	db := testdb.New(t)
	c := captured{DB: db, table: `"` + db.Schema.Schema + `".orders`}
	c.run(t, `CREATE TABLE {orders} (`+columns+`)`)
	return c
}

// run replaces {schema} and {orders}.
func (c captured) run(t *testing.T, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := c.ExecContext(t.Context(), c.fill(statement))
		require.NoError(t, err, statement)
	}
}

func (c captured) fill(statement string) string {
	return strings.NewReplacer("{schema}", `"`+c.Schema.Schema+`"`, "{orders}", c.table, "{outbox}", c.Schema.Outbox()).Replace(statement)
}

func (c captured) orders(with schema.Capture) schema.Capture {
	with.Table, with.TableSchema, with.Destination = "orders", c.Schema.Schema, "orders"
	return with
}

// apply makes a trigger in a transaction of its own.
func apply(t *testing.T, db *sql.DB, s schema.Postgres, c schema.Capture) (schema.CaptureTrigger, error) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	trigger, err := s.CaptureTrigger(t.Context(), tx, c)
	if err != nil {
		return trigger, err
	}
	if err := trigger.Apply(t.Context(), tx); err != nil {
		return trigger, err
	}
	require.NoError(t, tx.Commit())
	return trigger, nil
}

func (c captured) apply(t *testing.T, with schema.Capture) schema.CaptureTrigger {
	t.Helper()
	trigger, err := apply(t, c.DB.DB, c.Schema, c.orders(with))
	require.NoError(t, err)
	return trigger
}

// change is a row of the outbox.
type change struct{ Destination, Key, Payload, Metadata string }

// changes are taken out of the outbox, in the order of seq.
func (c captured) changes(t *testing.T) (changes []change) {
	t.Helper()
	rows, err := c.QueryContext(t.Context(), `WITH gone AS (DELETE FROM `+c.Schema.Outbox()+` RETURNING *)
		SELECT destination, coalesce(partition_key, 'NULL'), payload, metadata FROM gone ORDER BY seq`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var row change
		require.NoError(t, rows.Scan(&row.Destination, &row.Key, &row.Payload, &row.Metadata))
		changes = append(changes, row)
	}
	require.NoError(t, rows.Err())
	return changes
}

// payloads are those of changes.
func (c captured) payloads(t *testing.T) []string {
	t.Helper()
	payloads := []string{}
	for _, row := range c.changes(t) {
		payloads = append(payloads, row.Payload)
	}
	return payloads
}

// brief says what happened to a row with a status.
const brief = `tg_op || ' ' || coalesce(old.status, '') || '>' || coalesce(new.status, '')`

func TestCaptureWritesEachChangeByDefault(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			c := newCaptured(t, ordersColumns)
			_, err := apply(t, testdb.Open(t, driver, c.DSN), c.Schema, c.orders(schema.Capture{}))
			require.NoError(t, err)
			c.run(t,
				`INSERT INTO {orders} VALUES (1, 'new'), (2, 'new')`,
				`UPDATE {orders} SET status = 'paid' WHERE id = 1`,
				`DELETE FROM {orders} WHERE id = 1`)
			changes := c.changes(t)
			require.Len(t, changes, 4)
			for i, want := range []struct{ key, operation, before, after string }{
				{"1", "INSERT", `null`, `{"id":1,"status":"new"}`},
				{"2", "INSERT", `null`, `{"id":2,"status":"new"}`},
				{"1", "UPDATE", `{"id":1,"status":"new"}`, `{"id":1,"status":"paid"}`},
				{"1", "DELETE", `{"id":1,"status":"paid"}`, `null`},
			} {
				require.Equal(t, "orders", changes[i].Destination)
				require.Equal(t, want.key, changes[i].Key)
				require.Equal(t, "{}", changes[i].Metadata)
				require.JSONEq(t, `{"operation":"`+want.operation+`","schema":"`+c.Schema.Schema+`","table":"orders","before":`+
					want.before+`,"after":`+want.after+`}`, changes[i].Payload)
			}
		})
	}
}

func TestCaptureGivesEachEventItsOwnID(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	c.apply(t, schema.Capture{})
	c.run(t, `INSERT INTO {orders} SELECT n, 'new' FROM generate_series(1, 100) AS n`, `DELETE FROM {orders}`)
	var ids int
	require.NoError(t, c.QueryRowContext(t.Context(), c.fill(`SELECT count(DISTINCT id) FROM {outbox}`)).Scan(&ids))
	require.Equal(t, 200, ids)
}

func TestCaptureOnSomeOperations(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	for _, test := range []struct {
		on   []schema.Operation
		want []string
	}{
		{[]schema.Operation{schema.Insert}, []string{"INSERT >new"}},
		{[]schema.Operation{schema.Update}, []string{"UPDATE new>paid"}},
		{[]schema.Operation{schema.Delete, schema.Insert}, []string{"INSERT >new", "DELETE paid>"}},
		{nil, []string{"INSERT >new", "UPDATE new>paid", "DELETE paid>"}},
	} {
		c.apply(t, schema.Capture{On: test.on, Payload: brief})
		c.run(t, `INSERT INTO {orders} VALUES (1, 'new')`, `UPDATE {orders} SET status = 'paid'`, `DELETE FROM {orders}`)
		require.Equal(t, test.want, c.payloads(t))
	}
}

func TestCaptureExpressions(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns+`, customer text`)
	c.run(t, `CREATE FUNCTION {schema}.describe({schema}.orders) RETURNS text LANGUAGE sql AS $$ SELECT $1.customer || ' has ' || $1.id $$`,
		`CREATE TABLE {schema}.names (customer text, changed text)`, `INSERT INTO {schema}.names VALUES ('c1', 'Ann')`)
	c.apply(t, schema.Capture{
		When:         `changed.status <> 'draft' -- a comment`,
		ID:           c.fill(`'orders-' || changed.id || '-' || tg_op`),
		PartitionKey: `changed.customer`,
		Payload:      c.fill(`{schema}.describe(changed) || (SELECT ', ' || n.changed FROM {schema}.names AS n WHERE n.customer = changed.customer)`),
		Metadata:     `json_build_object('operation', lower(tg_op), 'path', 'a\b')`,
	})
	c.run(t, `INSERT INTO {orders} VALUES (1, 'draft', 'c1'), (2, 'new', 'c1')`)
	var id string
	require.NoError(t, c.QueryRowContext(t.Context(), c.fill(`SELECT id FROM {outbox}`)).Scan(&id))
	require.Equal(t, "orders-2-INSERT", id)
	c.run(t, `DELETE FROM {orders}`)
	require.Equal(t, []change{
		{"orders", "c1", "c1 has 2, Ann", `{"path": "a\\b", "operation": "insert"}`},
		{"orders", "c1", "c1 has 2, Ann", `{"path": "a\\b", "operation": "delete"}`},
	}, c.changes(t))
}

func TestCaptureOfUpdatesThatChangeNothing(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns+`, document json`) // json has no equality
	c.apply(t, schema.Capture{Payload: brief})
	c.run(t, `INSERT INTO {orders} VALUES (1, 'new', '{"a":1}')`, `UPDATE {orders} SET status = status`)
	require.Equal(t, []string{"INSERT >new"}, c.payloads(t))
	c.run(t, `UPDATE {orders} SET document = '{"a": 1}'`)
	require.Equal(t, []string{"UPDATE new>new"}, c.payloads(t))

	c.apply(t, schema.Capture{Payload: brief, UnchangedUpdates: true})
	c.run(t, `UPDATE {orders} SET status = status`)
	require.Equal(t, []string{"UPDATE new>new"}, c.payloads(t))
}

func TestCapturePartitionKeyByDefault(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ columns, values, want string }{
		"text":    {`"Id" text PRIMARY KEY, status text`, `'a "b"', 'new'`, `a "b"`},
		"uuid":    {`id uuid PRIMARY KEY, status text`, `'00000000-0000-0000-0000-00000000000A', 'new'`, `00000000-0000-0000-0000-00000000000a`},
		"several": {`status text, shop text, no int, PRIMARY KEY (no, shop)`, `'new', 'a"b', 7`, `[7, "a\"b"]`},
		"include": {`id int, status text, PRIMARY KEY (id) INCLUDE (status)`, `7, 'new'`, `7`},
		// Not what the writer's time zone makes of it.
		"time": {`id timestamptz PRIMARY KEY, status text`, `'2026-01-01 12:00+02', 'new'`, `2026-01-01 10:00:00+00`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCaptured(t, test.columns)
			c.apply(t, schema.Capture{})
			c.run(t, `INSERT INTO {orders} VALUES (`+test.values+`)`, `UPDATE {orders} SET status = 'paid'`, `DELETE FROM {orders}`)
			changes := c.changes(t)
			require.Len(t, changes, 3)
			for _, row := range changes {
				require.Equal(t, test.want, row.Key)
			}
		})
	}
}

// The event that a row has another key stands behind all that was said of the former one.
func TestCaptureOfAPrimaryKeyThatChanges(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	c.apply(t, schema.Capture{Payload: `concat(old.id, '>', new.id)`})
	c.run(t, `INSERT INTO {orders} VALUES (1, 'new')`, `UPDATE {orders} SET id = 2`, `UPDATE {orders} SET status = 'paid'`)
	require.Equal(t, []change{{"orders", "1", ">1", "{}"}, {"orders", "1", "1>2", "{}"}, {"orders", "2", "2>2", "{}"}}, c.changes(t))
}

// A row reads the same, whatever the session of its writer is set to.
func TestCaptureDoesNotDependOnTheWritersSession(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, `id timestamptz PRIMARY KEY, status text, float float8, bytes bytea, period tstzrange, wait interval, exact numeric, document json`)
	c.apply(t, schema.Capture{Metadata: `json_build_object('a\b', changed.wait)`})
	const row = `INSERT INTO {orders} VALUES ('2026-02-01 00:00+00', 'new', 0.1::float8 + 0.2::float8, decode('00ff', 'hex'),
		tstzrange('2026-02-01 00:00+00', NULL), make_interval(days => 3, hours => 4), 12345678901234567890.10, '{"z":"\u0000", "a":1e400000}')`
	c.run(t, row)
	want := c.changes(t)
	require.Contains(t, want[0].Payload, `"exact":12345678901234567890.10`)
	require.Contains(t, want[0].Payload, `{"z":"\u0000", "a":1e400000}`)
	require.Contains(t, want[0].Payload, `0.30000000000000004`)
	c.run(t, `DELETE FROM {orders}`)
	c.changes(t)

	// A session that has no plans yet.
	tx, err := testdb.Open(t, "postgres", c.DSN).BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	for _, statement := range []string{
		`SET LOCAL datestyle = 'German, DMY'`, `SET LOCAL timezone = 'Asia/Kathmandu'`, `SET LOCAL intervalstyle = 'sql_standard'`,
		`SET LOCAL bytea_output = 'escape'`, `SET LOCAL extra_float_digits = -15`, `SET LOCAL search_path = ` + c.Schema.Schema + `, pg_catalog`,
		`SET LOCAL standard_conforming_strings = off`, `SET LOCAL escape_string_warning = off`, `SET LOCAL plpgsql.variable_conflict = 'error'`,
		`CREATE FUNCTION {schema}.gen_random_uuid() RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid'`,
		`CREATE FUNCTION {schema}.json_build_object(VARIADIC "any") RETURNS json LANGUAGE internal AS 'json_build_object'`,
		strings.ReplaceAll(row, `\u`, `\\u`),
	} {
		_, err := tx.ExecContext(t.Context(), c.fill(statement))
		require.NoError(t, err, statement)
	}
	require.NoError(t, tx.Commit())
	require.Equal(t, want, c.changes(t))
}

func TestCaptureWithUnusualNames(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	s := schema.Postgres{Schema: `Own "one" $capture$ ` + testdb.RandomName(t), Name: strings.Repeat("Ö", 31), InboxName: "in"}
	db.DropSchema(t, s.Schema)
	require.NoError(t, s.Migrate(t.Context(), db.DB))
	tables := []string{
		"Orders", "orders", "select", `a "b".c; -- %s $1`, `it's \ a $capture1$ table`, "new\nline */",
		strings.Repeat("é", 31) + "1", strings.Repeat("é", 31) + "2", "old", "changed",
	}
	c := captured{DB: &testdb.DB{DB: db.DB, Schema: s}}
	for _, table := range tables {
		qualified := `"` + strings.ReplaceAll(s.Schema, `"`, `""`) + `"."` + strings.ReplaceAll(table, `"`, `""`) + `"`
		c.run(t, `CREATE TABLE `+qualified+` ("I d" int PRIMARY KEY, "tg_op" text, "new" int, "SELECT" int DEFAULT 7)`)
		for range 2 {
			_, err := apply(t, db.DB, s, schema.Capture{
				Table: table, TableSchema: s.Schema, Destination: `it's \n "` + table, ID: `concat(changed."I d", changed.tg_op)`,
			})
			require.NoError(t, err, table)
		}
		c.run(t, `INSERT INTO `+qualified+` VALUES (1, 'x', 2)`)
		changes := c.changes(t)
		require.Len(t, changes, 1)
		require.Equal(t, `it's \n "`+table, changes[0].Destination)
		var payload struct {
			Schema, Table string
			After         map[string]any
		}
		require.NoError(t, json.Unmarshal([]byte(changes[0].Payload), &payload))
		require.Equal(t, s.Schema, payload.Schema)
		require.Equal(t, table, payload.Table)
		require.Equal(t, map[string]any{"I d": 1.0, "tg_op": "x", "new": 2.0, "SELECT": 7.0}, payload.After)
	}
}

func TestCaptureRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns+`, bytes bytea`)
	c.run(t, `CREATE TABLE {schema}.heap (status text)`, `CREATE VIEW {schema}.seen AS SELECT id FROM {orders}`,
		`CREATE TABLE {schema}.whole (id int PRIMARY KEY) PARTITION BY RANGE (id)`,
		`CREATE TABLE {schema}.part PARTITION OF {schema}.whole DEFAULT`)
	for name, test := range map[string]struct {
		change func(c *schema.Capture)
		says   string
	}{
		"no table":             {func(c *schema.Capture) { c.Table = "" }, "Table is required"},
		"long table":           {func(c *schema.Capture) { c.Table = strings.Repeat("x", 64) }, "64 bytes"},
		"NUL":                  {func(c *schema.Capture) { c.TableSchema = "a\x00" }, "NUL"},
		"no destination":       {func(c *schema.Capture) { c.Destination = "" }, "Destination is required"},
		"long destination":     {func(c *schema.Capture) { c.Destination = strings.Repeat("x", 256) }, "256 bytes"},
		"bad destination":      {func(c *schema.Capture) { c.Destination = "\xff" }, "UTF-8"},
		"operation":            {func(c *schema.Capture) { c.On = []schema.Operation{"insert"} }, `"insert"`},
		"NUL in an expression": {func(c *schema.Capture) { c.Payload = "'\x00'" }, "Payload"},
		"blank":                {func(c *schema.Capture) { c.When = "\n" }, "When is blank"},
		"missing table":        {func(c *schema.Capture) { c.Table = "Orders" }, "no table"},
		"missing schema":       {func(c *schema.Capture) { c.TableSchema = "" }, `"public"."orders"`},
		"no primary key":       {func(c *schema.Capture) { c.Table = "heap" }, "PartitionKey"},
		"view":                 {func(c *schema.Capture) { c.Table = "seen" }, "neither"},
		"partition":            {func(c *schema.Capture) { c.Table = "part" }, "partition"},
		"the outbox":           {func(c *schema.Capture) { c.Table = "outbox" }, "outbox table itself"},
		"dead letters":         {func(c *schema.Capture) { c.Table = "outbox_dead_letters" }, "itself"},
		"unknown column":       {func(c *schema.Capture) { c.Payload = "changed.nope" }, "nope"},
		"no alias":             {func(c *schema.Capture) { c.PartitionKey = "id" }, "id"},
		"unknown function":     {func(c *schema.Capture) { c.ID = "nope(changed)" }, "nope"},
		"not qualified":        {func(c *schema.Capture) { c.Payload = "(SELECT status FROM orders)" }, "orders"},
		"syntax":               {func(c *schema.Capture) { c.Metadata = "'{}" }, ""},
		"parentheses":          {func(c *schema.Capture) { c.Payload = "'a'), ('b'" }, ""},
		"two statements":       {func(c *schema.Capture) { c.Payload = "'a'; DELETE FROM x" }, ""},
		"not a condition":      {func(c *schema.Capture) { c.When = "changed.status" }, "boolean"},
		"not metadata":         {func(c *schema.Capture) { c.Metadata = "1" }, "metadata"},
		"not even JSON":        {func(c *schema.Capture) { c.Metadata = "'x'" }, "json"},
		"bytes":                {func(c *schema.Capture) { c.Payload = "changed.bytes" }, "bytea"},
	} {
		capture := c.orders(schema.Capture{})
		test.change(&capture)
		_, err := apply(t, c.DB.DB, c.Schema, capture)
		require.ErrorIs(t, err, schema.ErrInvalidCapture, name)
		require.ErrorContains(t, err, test.says, name)
	}
	var left int
	require.NoError(t, c.QueryRowContext(t.Context(), c.fill(`SELECT count(*) FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace
		AND proname LIKE 'watermill_outbox_capture%'`)).Scan(&left))
	require.Zero(t, left)
	c.run(t, `INSERT INTO {orders} VALUES (1, 'new')`)
	require.Empty(t, c.changes(t))

	empty := testdb.NewEmpty(t)
	_, err := apply(t, empty.DB, empty.Schema, c.orders(schema.Capture{}))
	require.ErrorIs(t, err, schema.ErrNotMigrated)
	_, err = apply(t, empty.DB, schema.Postgres{Name: strings.Repeat("x", 64)}, c.orders(schema.Capture{}))
	require.ErrorIs(t, err, schema.ErrInvalidName)
}

// There is no change without its event.
func TestCaptureThatFailsFailsTheWriter(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	for name, test := range map[string]struct {
		with  schema.Capture
		state string
	}{
		"division":   {schema.Capture{Payload: `(1 / (changed.id - 1))::text`}, "22012"},
		"no payload": {schema.Capture{Payload: `NULL`}, "23514"},
		"no id":      {schema.Capture{ID: `NULL`}, "23502"},
		"long key":   {schema.Capture{PartitionKey: `repeat('x', 1025)`}, "23514"},
	} {
		c.apply(t, test.with)
		_, err := c.ExecContext(t.Context(), c.fill(`INSERT INTO {orders} VALUES (1, 'new')`))
		var state interface{ SQLState() string }
		require.ErrorAs(t, err, &state, name)
		require.Equal(t, test.state, state.SQLState(), name)
	}
	c.apply(t, schema.Capture{PartitionKey: `NULL`})
	c.run(t, `INSERT INTO {orders} VALUES (1, 'new')`)
	require.Equal(t, "NULL", c.changes(t)[0].Key, "a unit of its own")
}

func TestCaptureByManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	c := newCaptured(t, ordersColumns)
	var wait sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		db := testdb.Open(t, "postgres", c.DSN)
		wait.Go(func() { _, errs[i] = apply(t, db, c.Schema, c.orders(schema.Capture{Payload: brief})) })
	}
	wait.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	c.run(t, `INSERT INTO {orders} VALUES (1, 'new')`)
	require.Equal(t, []string{"INSERT >new"}, c.payloads(t))
}

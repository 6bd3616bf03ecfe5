package outbox_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

func TestUnusualNames(t *testing.T) {
	t.Parallel()
	for name, names := range map[string]schema.Postgres{
		"mixed case":     {Schema: "MixedCase", Name: "OutBox", InboxName: "InBox"},
		"odd":            {Schema: `My "Schema".x; -- %s $1 {{.}} é`, Name: `My-Outbox "x" '\`, InboxName: "\tselect * $1 %d\n"},
		"SQL words":      {Schema: "user", Name: "select", InboxName: "table"},
		"63 bytes":       {Schema: strings.Repeat("s", 50), Name: strings.Repeat("o", 63), InboxName: strings.Repeat("i", 63)},
		"63 bytes, wide": {Schema: strings.Repeat("é", 25), Name: strings.Repeat("é", 31) + "o", InboxName: strings.Repeat("é", 31) + "i"},
	} {
		for _, driver := range drivers {
			t.Run(name+" "+driver, func(t *testing.T) {
				t.Parallel()
				db := testdb.NewEmpty(t)
				s := names
				s.Schema += " " + testdb.RandomName(t)
				db.DropSchema(t, s.Schema)
				travel(t, testdb.Open(t, driver, db.DSN), s)
			})
		}
	}
}

// A database brings its own defaults to every session.
func TestDatabasesWithOtherDefaults(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"serializable", "repeatable read"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			db := testdb.NewDatabase(t, `default_transaction_isolation = '`+isolation+`'`,
				`default_transaction_deferrable = on`, `search_path = elsewhere`)
			for _, driver := range drivers {
				travel(t, testdb.Open(t, driver, db.DSN), schema.Postgres{Schema: driver})
			}
		})
	}
}

// So does a role.
func TestRolesWithOtherDefaults(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"asynchronous commit": {`synchronous_commit = off`},
		"timeouts": {
			`lock_timeout = '20s'`, `statement_timeout = '30s'`, `idle_in_transaction_session_timeout = '30s'`,
		},
		"generic plans": {`plan_cache_mode = force_generic_plan`},
	} {
		for _, driver := range drivers {
			t.Run(name+" "+driver, func(t *testing.T) {
				t.Parallel()
				db := withDefaults(t, settings...)
				travel(t, testdb.Open(t, driver, db.DSN), db.Schema)
			})
		}
	}
}

// withDefaults is a database for a superuser to whom these settings are the default.
func withDefaults(t *testing.T, settings ...string) *testdb.DB {
	t.Helper()
	db := testdb.NewEmpty(t)
	statements := []string{`ALTER ROLE {role} SUPERUSER`}
	for _, setting := range settings {
		statements = append(statements, `ALTER ROLE {role} SET `+setting)
	}
	_, db.DSN = db.NewRole(t, statements...)
	return db
}

// access is a way in which a driver may speak to Postgres: for pgx a mode, or "" for
// prepared statements.
type access struct{ driver, mode string }

func (a access) open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	if a.mode != "" {
		dsn = testdb.WithSetting(t, dsn, "default_query_exec_mode", a.mode)
	}
	return testdb.Open(t, a.driver, dsn)
}

// Values go to and fro as text, in forms that settings choose, in some of the ways in
// which drivers speak to Postgres.
func TestUnusualFormats(t *testing.T) {
	t.Parallel()
	for _, access := range []access{{driver: "postgres"}, {driver: "pgx"}, {"pgx", "exec"}, {"pgx", "simple_protocol"}} {
		t.Run(access.driver+" "+access.mode, func(t *testing.T) {
			t.Parallel()
			db := withDefaults(t, `bytea_output = 'escape'`, `datestyle = 'German', 'DMY'`, `intervalstyle = 'sql_standard'`,
				`timezone = 'Asia/Kathmandu'`, `extra_float_digits = -15`, `array_nulls = off`, `transform_null_equals = on`)
			travel(t, access.open(t, db.DSN), db.Schema)
		})
	}
}

// Where backslashes escape in every literal, pgx's simple protocol refuses to work.
func TestBackslashesThatEscape(t *testing.T) {
	t.Parallel()
	for _, access := range []access{{driver: "postgres"}, {"pgx", "exec"}} {
		t.Run(access.driver, func(t *testing.T) {
			t.Parallel()
			db := withDefaults(t, `standard_conforming_strings = off`, `escape_string_warning = off`)
			travel(t, access.open(t, db.DSN), db.Schema)
		})
	}
}

// lib/pq asks for UTF8 by itself. With pgx, a default of the role would have every text
// converted into another one: nothing is stored instead, and the error says so. The
// forwarder has transactions of its own, and sets what it needs. What watermill-sql sends
// and receives is ASCII or bytes.
func TestClientEncoding(t *testing.T) {
	t.Parallel()
	db := withDefaults(t, `client_encoding = 'LATIN1'`)
	travel(t, testdb.Open(t, "postgres", db.DSN), db.Schema)

	w := newWholeWay(t, testdb.Open(t, "pgx", db.DSN), db.Schema)
	tx, err := w.pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	keyed, described := newMessage("1", "x"), newMessage("1", "x")
	keyed.Metadata.Set(outbox.PartitionKeyMetadata, "é")
	described.Metadata.Set("name", "é")
	for _, msg := range []*message.Message{newMessage("1", "é"), newMessage("é", "x"), newMessage("é", "\xff"), keyed, described} {
		require.ErrorIs(t, w.publisher.PublishTx(t.Context(), tx, "orders", msg), outbox.ErrNotStored)
		err = w.publisher.PublishTx(t.Context(), tx, "orders", msg, newMessage("2", "x"))
		require.ErrorIs(t, err, outbox.ErrNotStored)
		require.ErrorContains(t, err, "0 of 2")
	}
	require.ErrorIs(t, w.publisher.PublishTx(t.Context(), tx, "é", newMessage("1", "x")), outbox.ErrNotStored)
	// ASCII and bytes are the same in every encoding.
	require.NoError(t, w.publisher.PublishTx(t.Context(), tx, "orders", newMessage("1", "\x00\xff")))
	require.NoError(t, w.publisher.PublishTx(t.Context(), tx, "orders", newMessage("2", `{"a":"\\"}`, "a", `\b`), newMessage("3", "\xff")))
	var stored string
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT string_agg(concat_ws(' ', id, payload, encode(payload_bytes, 'hex'), metadata), ', ' ORDER BY seq)
		FROM `+w.schema.Outbox()).Scan(&stored))
	require.Equal(t, `1 00ff {}, 2 {"a":"\\"} {"a": "\\b"}, 3 ff {}`, stored)
	_, err = w.store.Record(t.Context(), tx, inbox.Key{Consumer: "payments", EventID: "é"})
	require.ErrorIs(t, err, inbox.ErrEncoding)
	require.NoError(t, tx.Rollback())
	w.useAsQueue(t)

	named := db.Schema
	named.Name = "boîte"
	require.NoError(t, named.Migrate(t.Context(), w.pool))
	require.NoError(t, named.Check(t.Context(), testdb.Open(t, "postgres", db.DSN)), "its name is the same to others")

	sent := newWholeWay(t, testdb.Open(t, "postgres", db.DSN), db.Schema).write(t)
	w.forward(t)
	requireUnits(t, sent, w.relay.arrived())

	for _, encoding := range []string{"UTF8", "SQL_ASCII"} {
		travel(t, testdb.Open(t, "pgx", testdb.WithSetting(t, db.DSN, "client_encoding", encoding)), db.Schema)
	}
}

// What a trigger takes away is not in the outbox, although Postgres says nothing.
func TestRowsThatATriggerDrops(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := setup(t, driver)
			spread(t, b.db.DB, `CREATE FUNCTION `+b.db.Schema.Schema+`.drop_row() RETURNS trigger LANGUAGE plpgsql AS
				$$BEGIN IF NEW.id = '2' THEN RETURN NULL; END IF; RETURN NEW; END$$`)
			spread(t, b.db.DB, `CREATE TRIGGER drop_row BEFORE INSERT ON `+b.db.Schema.Outbox()+`
				FOR EACH ROW EXECUTE FUNCTION `+b.db.Schema.Schema+`.drop_row()`)
			tx := b.begin(t)
			require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("1", "x")))
			require.ErrorIs(t, b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("2", "x")), outbox.ErrNotStored)
			err := b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("1", "x"), newMessage("2", "x"))
			require.ErrorIs(t, err, outbox.ErrNotStored)
			require.ErrorContains(t, err, "1 of 2")
		})
	}
}

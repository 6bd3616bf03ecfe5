package schema_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// What JSON, base64 and text columns could change.
var awkward = []string{
	"", "plain", `{"a":"\u00e9\n\\"}`, "null", `"quoted"`, `back\slash`, "<&>\u2028", "é✓𝄞", " space ", "\t\r\n",
	"\x00", "\xff\xfe", "a\x00b", `\x41`, "\x1f",
}

// From publisher to subscriber, in the publisher's transaction.
func TestWatermillPublisherKeepsEveryByte(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.DB = testdb.Open(t, driver, db.DSN)
			sent := []*message.Message{message.NewMessage("no payload", nil)}
			for i, payload := range awkward {
				text := strings.ToValidUTF8(strings.ReplaceAll(payload, "\x00", ""), "")
				msg := message.NewMessage(fmt.Sprintf("id-%d %s", i, text), []byte(payload))
				msg.Metadata = message.Metadata{"value": text, "key " + text: "x", schema.PartitionKeyMetadata: "one unit"}
				sent = append(sent, msg)
			}

			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			defer tx.Rollback()
			require.NoError(t, newWatermillPublisher(t, tx, db.Schema).Publish("orders", sent...))
			require.Empty(t, waiting(t, db), "nothing is there before the caller's commit")
			require.NoError(t, tx.Commit())

			received := subscribe(t, db)
			for _, want := range sent {
				got := receive(t, received)
				require.Equal(t, want.UUID, got.UUID)
				require.Equal(t, append([]byte{}, want.Payload...), []byte(got.Payload))
				require.Equal(t, want.Metadata, got.Metadata)
				got.Ack()
			}
			requireWaiting(t, db)
		})
	}
}

func TestWatermillPublisherFillsTheColumns(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	publisher := newWatermillPublisher(t, db.DB, db.Schema)
	keyed := message.NewMessage("keyed", []byte("text"))
	keyed.Metadata.Set(outbox.PartitionKeyMetadata, "order-7")
	unkeyed := message.NewMessage("unkeyed", []byte{0xff})
	unkeyed.Metadata = nil
	require.NoError(t, publisher.Publish("orders", keyed, unkeyed))

	var same int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()+`
		WHERE destination = 'orders' AND attempts = 0 AND next_attempt_at IS NULL AND published_at IS NULL AND (
			(id = 'keyed' AND partition_key = 'order-7' AND payload = 'text' AND payload_bytes IS NULL
				AND metadata = '{"_watermill_outbox_partition_key": "order-7"}')
			OR (id = 'unkeyed' AND partition_key IS NULL AND payload IS NULL AND payload_bytes = '\xff' AND metadata = '{}'))`).Scan(&same))
	require.Equal(t, 2, same)
}

func TestRolledBackTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, newWatermillPublisher(t, tx, db.Schema).Publish("orders", message.NewMessage("1", nil)))
	require.NoError(t, tx.Rollback())
	require.Empty(t, waiting(t, db))
}

// Each of these calls fails, or is lost, with watermill-sql's default tables.
func TestWhatDefaultTablesRefuseIsTaken(t *testing.T) {
	t.Parallel()
	binary := make([]byte, 1000)
	_, err := rand.Read(binary)
	require.NoError(t, err)
	many := make([]*message.Message, 22_000) // 66,000 parameters, of which 65,535 are allowed
	for i := range many {
		many[i] = message.NewMessage(fmt.Sprint(i), []byte(`{}`))
	}
	for name, msgs := range map[string][]*message.Message{
		"no message":          {},
		"22,000 messages":     many,
		"id of 37 characters": {message.NewMessage(strings.Repeat("x", 37), []byte(`{}`))},
		"id of 255 bytes":     {message.NewMessage(strings.Repeat("x", 255), []byte(`{}`))},
		"binary payload":      {message.NewMessage("1", binary)},
		"empty payload":       {message.NewMessage("1", []byte{})},
		"text that is no JSON": {
			message.NewMessage("1", []byte("plain")),
		},
	} {
		for _, driver := range drivers {
			t.Run(name+" "+driver, func(t *testing.T) {
				t.Parallel()
				db := testdb.New(t)
				pool := testdb.Open(t, driver, db.DSN)
				require.Error(t, newWatermillPublisher(t, pool, defaultTables(t, db)).Publish("orders", msgs...))

				require.NoError(t, newWatermillPublisher(t, pool, db.Schema).Publish("orders", msgs...))
				ids := waiting(t, db)
				require.Len(t, ids, len(msgs))
				for i, id := range ids {
					require.Equal(t, msgs[i].UUID, id, "the order of a call is the order of rows")
				}
			})
		}
	}
}

// defaultTables creates what watermill-sql keeps by default for the topic orders.
func defaultTables(t *testing.T, db *testdb.DB) wmsql.DefaultPostgreSQLSchema {
	t.Helper()
	adapter := wmsql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: func(topic string) string { return `"` + db.Schema.Schema + `"."` + topic + `"` },
	}
	for _, query := range adapter.SchemaInitializingQueries("orders") {
		_, err := db.ExecContext(t.Context(), query.Query)
		require.NoError(t, err)
	}
	return adapter
}

func TestInvalidMessageIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	publisher := newWatermillPublisher(t, db.DB, db.Schema)
	tooLarge := strings.Repeat("v", outbox.MaxMetadataBytes-len(`{"k":""}`)+1)
	for rule, msg := range map[string]*message.Message{
		"message 1 is nil":                                              nil,
		"its UUID (the event id) is not valid UTF-8":                    message.NewMessage("\xff", nil),
		"its UUID (the event id) holds a NUL byte":                      message.NewMessage("a\x00", nil),
		`the metadata key "\xff" is not valid UTF-8`:                    withMetadata("\xff", "v"),
		`the metadata key "k\x00" holds a NUL byte`:                     withMetadata("k\x00", "v"),
		`the value of metadata key "k" is not valid UTF-8`:              withMetadata("k", "\xff"),
		`the value of metadata key "k" holds a NUL byte`:                withMetadata("k", "\x00"),
		`the metadata key "_watermill_message_uuid" is reserved`:        withMetadata("_watermill_message_uuid", "1"),
		`its metadata has 122881 bytes, at most 122880 are allowed`:     withMetadata("k", tooLarge),
		`the value of metadata key "_watermill_outbox_partition_key" h`: withMetadata(schema.PartitionKeyMetadata, "\x00"),
	} {
		err := publisher.Publish("orders", message.NewMessage("good", nil), msg)
		require.ErrorIs(t, err, schema.ErrInvalidMessage)
		require.ErrorContains(t, err, rule)
	}
	require.Empty(t, waiting(t, db))
	require.NoError(t, publisher.Publish("orders", withMetadata("k", tooLarge[1:])), "the most that is allowed")
}

func TestTableRefusesWhatIsTooLong(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	publisher := newWatermillPublisher(t, db.DB, db.Schema)
	for constraint, publish := range map[string]func() error{
		"id_length": func() error {
			return publisher.Publish("orders", message.NewMessage("good", nil), message.NewMessage(strings.Repeat("x", outbox.MaxIDBytes+1), nil))
		},
		"destination_length": func() error {
			return publisher.Publish(strings.Repeat("x", outbox.MaxDestinationBytes+1), message.NewMessage("1", nil))
		},
		"partition_key_length": func() error {
			return publisher.Publish("orders", withMetadata(schema.PartitionKeyMetadata, strings.Repeat("x", outbox.MaxPartitionKeyBytes+1)))
		},
	} {
		err := publish()
		var coded interface{ SQLState() string }
		require.ErrorAs(t, err, &coded, constraint)
		require.Equal(t, "23514", coded.SQLState(), constraint)
		require.ErrorContains(t, err, constraint)
	}
	require.Error(t, publisher.Publish("", message.NewMessage("no destination", nil)))
	require.Error(t, publisher.Publish("orders", message.NewMessage("", nil)))
	require.Empty(t, waiting(t, db))
}

func TestWhatPostgresCouldNotTakeIsRefused(t *testing.T) {
	t.Parallel()
	largest := message.NewMessage("1", make([]byte, outbox.MaxPayloadBytes))
	_, err := schema.Postgres{}.InsertQuery("orders", message.Messages{message.NewMessage("1", make([]byte, outbox.MaxPayloadBytes+1))})
	require.ErrorIs(t, err, schema.ErrInvalidMessage)
	require.ErrorContains(t, err, "its payload has 134217729 bytes")
	_, err = schema.Postgres{}.InsertQuery("orders", message.Messages{largest, largest, largest, largest})
	require.ErrorIs(t, err, schema.ErrInvalidMessage)
	require.ErrorContains(t, err, "publish fewer at once")
}

// watermill-sql traces the parameters of its statements.
func TestContentIsNotLogged(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var log bytes.Buffer
	publisher, err := wmsql.NewPublisher(db.DB, wmsql.PublisherConfig{SchemaAdapter: db.Schema},
		watermill.NewStdLoggerWithOut(&log, true, true))
	require.NoError(t, err)
	msg := withMetadata("k", "private")
	msg.Payload = []byte("private")
	require.NoError(t, publisher.Publish("orders", msg))
	require.Contains(t, log.String(), "INSERT INTO")
	require.Contains(t, log.String(), "orders")
	require.NotContains(t, log.String(), "private")
	require.NotContains(t, log.String(), "cHJpdmF0ZQ", "in base64")
}

func withMetadata(name, value string) *message.Message {
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set(name, value)
	return msg
}

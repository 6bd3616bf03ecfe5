package outbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

var drivers = []string{"postgres", "pgx"}

type bundle struct {
	db        *testdb.DB
	publisher *outbox.Publisher
}

func setup(t *testing.T, driver string) bundle {
	t.Helper()
	db := testdb.New(t)
	db.DB = testdb.Open(t, driver, db.DSN)
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.Schema}, nil)
	require.NoError(t, err)
	return bundle{db: db, publisher: publisher}
}

func (b bundle) begin(t *testing.T) *sql.Tx {
	t.Helper()
	tx, err := b.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

type stored struct {
	ID, Destination, Key string
	Payload              []byte
	IsText               bool
	Metadata             message.Metadata
}

func (b bundle) stored(t *testing.T) []stored {
	t.Helper()
	rows, err := b.db.QueryContext(t.Context(), `SELECT id, destination, coalesce(partition_key, '<null>'),
		coalesce(payload_bytes, convert_to(payload, 'UTF8')), payload IS NOT NULL, metadata::text
		FROM `+b.db.Schema.Outbox()+` ORDER BY seq`)
	require.NoError(t, err)
	defer rows.Close()
	list := []stored{}
	for rows.Next() {
		var (
			s        stored
			metadata string
		)
		require.NoError(t, rows.Scan(&s.ID, &s.Destination, &s.Key, &s.Payload, &s.IsText, &metadata))
		require.NoError(t, json.Unmarshal([]byte(metadata), &s.Metadata))
		s.Payload = append([]byte{}, s.Payload...) // of an empty one lib/pq makes nil, if bytea_output is escape
		list = append(list, s)
	}
	require.NoError(t, rows.Err())
	return list
}

func newMessage(id, payload string, metadata ...string) *message.Message {
	msg := message.NewMessage(id, []byte(payload))
	for i := 0; i+1 < len(metadata); i += 2 {
		msg.Metadata.Set(metadata[i], metadata[i+1])
	}
	return msg
}

// awkward payloads and texts: what array syntax, JSON and text columns could change.
var awkward = []string{
	"", "plain", `{"a":"\u00e9\n\\"}`, "NULL", `"quoted"`, `back\slash`, "{}", ",", "é✓𝄞", " space ", "\t\r\n",
	"\x00", "\xff\xfe", "a\x00b", `\x41`, "\x1f",
}

func TestPublishTxKeepsEveryByte(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		for name, perCall := range map[string]int{"one a call": 1, "all in one call": len(awkward)} {
			t.Run(driver+" "+name, func(t *testing.T) {
				t.Parallel()
				b := setup(t, driver)
				tx := b.begin(t)
				var msgs []*message.Message
				for i, payload := range awkward {
					text := strings.ToValidUTF8(strings.ReplaceAll(payload, "\x00", ""), "")
					msgs = append(msgs, newMessage(fmt.Sprintf("id-%d %s", i, text), payload,
						"value", text, "key "+text, "x", outbox.PartitionKeyMetadata, text))
				}
				for start := 0; start < len(msgs); start += perCall {
					require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", msgs[start:start+perCall]...))
				}
				require.Empty(t, b.stored(t), "nothing is there before the caller's commit")
				require.NoError(t, tx.Commit())

				rows := b.stored(t)
				require.Len(t, rows, len(msgs))
				for i, row := range rows {
					key := msgs[i].Metadata.Get(outbox.PartitionKeyMetadata)
					if key == "" {
						key = "<null>"
					}
					require.Equal(t, stored{
						ID:          msgs[i].UUID,
						Destination: "orders",
						Key:         key,
						Payload:     []byte(awkward[i]),
						IsText:      !strings.ContainsAny(awkward[i], "\x00") && strings.ToValidUTF8(awkward[i], "") == awkward[i],
						Metadata:    msgs[i].Metadata,
					}, row)
				}
			})
		}
	}
}

// Each shape has a statement of its own: with or without key, metadata, bytes, text beyond ASCII.
func TestPublishTxOfEveryShape(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := setup(t, driver)
			tx := b.begin(t)
			var want []stored
			shaped := func(number int, keyed, described, binary, foreign bool) *message.Message {
				row := stored{ID: fmt.Sprint("id-", number), Destination: "orders", Key: "<null>", Payload: []byte("x"), IsText: !binary, Metadata: message.Metadata{}}
				if foreign {
					row.ID += " é"
				}
				if binary {
					row.Payload = []byte("\x00\xff")
				}
				msg := newMessage(row.ID, string(row.Payload))
				if keyed {
					row.Key = "key"
					msg.Metadata.Set(outbox.PartitionKeyMetadata, "key")
				}
				if described {
					msg.Metadata.Set("name", "value")
				}
				row.Metadata = msg.Metadata
				want = append(want, row)
				return msg
			}
			for first := range 16 {
				for second := range 17 {
					msgs := []*message.Message{shaped(first, first&1 > 0, first&2 > 0, first&4 > 0, first&8 > 0)}
					if second < 16 {
						msgs = append(msgs, shaped(second, second&1 > 0, second&2 > 0, second&4 > 0, second&8 > 0))
					}
					require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", msgs...))
				}
			}
			require.NoError(t, tx.Commit())
			require.Equal(t, want, b.stored(t))
		})
	}
}

func TestRollbackLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := setup(t, driver)
			tx := b.begin(t)
			require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("1", "x"), newMessage("2", "y")))
			require.NoError(t, tx.Rollback())
			require.Empty(t, b.stored(t))
		})
	}
}

func TestPublishTxOfManyMessages(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := setup(t, driver)
			const n = 100_000
			msgs := make([]*message.Message, n)
			for i := range msgs {
				msgs[i] = newMessage(fmt.Sprint(i), "payload")
			}
			tx := b.begin(t)
			require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", msgs...))
			require.NoError(t, tx.Commit())
			var rows, inOrder int
			require.NoError(t, b.db.QueryRowContext(t.Context(), `SELECT count(*), count(*) FILTER (WHERE id = (place - 1)::text)
				FROM (SELECT id, row_number() OVER (ORDER BY seq) AS place FROM `+b.db.Schema.Outbox()+`) AS o`).Scan(&rows, &inOrder))
			require.Equal(t, n, rows)
			require.Equal(t, n, inOrder, "the order of seq is the order given")
		})
	}
}

// countingTx counts the statements that pass.
type countingTx struct {
	outbox.Tx

	statements int
	largest    int
}

func (c *countingTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	c.statements++
	size := 0
	for _, arg := range args {
		if valuer, ok := arg.(interface{ Value() (any, error) }); ok {
			value, err := valuer.Value()
			if err != nil {
				return nil, err
			}
			arg = value
		}
		size += len(fmt.Sprint(arg))
	}
	c.largest = max(c.largest, size)
	return c.Tx.ExecContext(ctx, query, args...)
}

func TestStatementsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	tx := &countingTx{Tx: b.begin(t)}
	require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders"))
	require.Zero(t, tx.statements, "no message is a no-op")

	payload := strings.Repeat("x", 1<<20)
	msgs := make([]*message.Message, 40)
	for i := range msgs {
		msgs[i] = newMessage(fmt.Sprint(i), payload)
	}
	require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", msgs...))
	require.Equal(t, 3, tx.statements)
	require.LessOrEqual(t, tx.largest, 16<<20)

	*tx = countingTx{Tx: tx.Tx}
	large := newMessage("large", string(bytes.Repeat([]byte{0}, 20<<20)))
	require.NoError(t, b.publisher.PublishTx(t.Context(), tx, "orders", newMessage("before", "x"), large, newMessage("after", "x")))
	require.Equal(t, 3, tx.statements, "a message over the bound goes alone")
}

func TestInvalidInputIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	good := newMessage("good", "x")
	keyError := errors.New("test: no key")
	failing, err := outbox.NewPublisher(outbox.PublisherConfig{
		Schema:       b.db.Schema,
		PartitionKey: func(string, *message.Message) (string, error) { return "", keyError },
	}, nil)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		publisher   *outbox.Publisher
		destination string
		msg         *message.Message
		is          error
		text        string
	}{
		"nil message":           {msg: nil, is: outbox.ErrInvalidMessage, text: "message 1 is nil"},
		"empty id":              {msg: newMessage("", "x"), is: outbox.ErrInvalidMessage, text: `message 1 (""): outbox: invalid message: its UUID (the event id) is empty`},
		"long id":               {msg: newMessage(strings.Repeat("x", 256), "x"), is: outbox.ErrInvalidMessage, text: "has 256 bytes, at most 255 are allowed"},
		"id not UTF-8":          {msg: newMessage("a\xff", "x"), is: outbox.ErrInvalidMessage, text: `"a\xff" is not valid UTF-8`},
		"NUL in id":             {msg: newMessage("a\x00", "x"), is: outbox.ErrInvalidMessage, text: "holds a NUL byte"},
		"metadata key":          {msg: newMessage("1", "x", "k\xff", "v"), is: outbox.ErrInvalidMessage, text: `the metadata key "k\xff" is not valid UTF-8`},
		"metadata value":        {msg: newMessage("1", "x", "k", "v\x00"), is: outbox.ErrInvalidMessage, text: `the value of metadata key "k" holds a NUL byte`},
		"reserved metadata":     {msg: newMessage("1", "x", "_watermill_message_uuid", "v"), is: outbox.ErrInvalidMessage, text: "is reserved: the event id"},
		"routing header":        {msg: newMessage("1", "x", "CC", "v"), is: outbox.ErrInvalidMessage, text: `"CC" is reserved: RabbitMQ takes it for further routing keys`},
		"hidden routing header": {msg: newMessage("1", "x", "BCC", "v"), is: outbox.ErrInvalidMessage, text: `"BCC" is reserved`},
		"broker's header":       {msg: newMessage("1", "x", "x-delivery-count", "v"), is: outbox.ErrInvalidMessage, text: "is reserved: RabbitMQ writes it"},
		"dead letter's header":  {msg: newMessage("1", "x", "x-first-death-queue", "v"), is: outbox.ErrInvalidMessage, text: "is reserved: RabbitMQ keeps the history"},
		"long metadata key":     {msg: newMessage("1", "x", strings.Repeat("é", 128), "v"), is: outbox.ErrInvalidMessage, text: `a metadata key has 256 bytes, at most 255 are allowed: "éééééééééééééééééééé"…`},
		"partition key":         {msg: newMessage("1", "x", outbox.PartitionKeyMetadata, "\xff"), is: outbox.ErrInvalidMessage, text: "is not valid UTF-8"},
		"long partition key":    {msg: newMessage("1", "x", outbox.PartitionKeyMetadata, strings.Repeat("k", 1025)), is: outbox.ErrInvalidMessage, text: "has 1025 bytes, at most 1024"},
		"large payload":         {msg: newMessage("1", string(make([]byte, outbox.MaxPayloadBytes+1))), is: outbox.ErrInvalidMessage, text: "its payload has 134217729 bytes"},
		"large metadata":        {msg: newMessage("1", "x", "k", strings.Repeat("v", outbox.MaxMetadataBytes)), is: outbox.ErrInvalidMessage, text: "its metadata has"},
		"partition key fails":   {publisher: failing, msg: good, is: keyError, text: "partition key"},
		"no destination":        {destination: "-", msg: good, is: outbox.ErrInvalidDestination, text: "it is empty"},
		"long destination":      {destination: strings.Repeat("x", 256), msg: good, is: outbox.ErrInvalidDestination, text: "has 256 bytes, at most 255"},
		"destination not UTF-8": {destination: "\xff", msg: good, is: outbox.ErrInvalidDestination, text: "is not valid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			publisher, destination := b.publisher, "orders"
			if test.publisher != nil {
				publisher = test.publisher
			}
			if test.destination != "" {
				destination = strings.TrimPrefix(test.destination, "-")
			}
			tx := &countingTx{}
			err := publisher.PublishTx(t.Context(), tx, destination, good, test.msg)
			require.ErrorIs(t, err, test.is)
			require.ErrorContains(t, err, test.text)
			require.Zero(t, tx.statements)
		})
	}
}

func TestPartitionKeyFunction(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{
		Schema: b.db.Schema,
		PartitionKey: func(destination string, msg *message.Message) (string, error) {
			return destination + "/" + msg.Metadata.Get("order"), nil
		},
	}, nil)
	require.NoError(t, err)
	tx := b.begin(t)
	require.NoError(t, publisher.PublishTx(t.Context(), tx, "orders", newMessage("1", "x", "order", "7")))
	require.NoError(t, tx.Commit())
	require.Equal(t, "orders/7", b.stored(t)[0].Key)
}

func TestInTxAndPublishUseTheCallersTransaction(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := setup(t, driver)
			kept, dropped := b.begin(t), b.begin(t)

			inTx := b.publisher.InTx(kept)
			require.NoError(t, inTx.Publish("orders", newMessage("1", "x"), newMessage("2", "x")))
			require.NoError(t, inTx.Publish("orders"))
			require.NoError(t, inTx.Close())

			withTx := func(id string, tx outbox.Tx) *message.Message {
				msg := newMessage(id, "x")
				msg.SetContext(outbox.ContextWithTx(t.Context(), tx))
				return msg
			}
			require.NoError(t, b.publisher.Publish("orders", withTx("3", kept), withTx("4", kept), withTx("5", dropped), withTx("6", kept)))
			require.NoError(t, b.publisher.Close(), "closing does no harm")
			require.NoError(t, b.publisher.Publish("orders", withTx("7", kept)))
			require.NoError(t, b.publisher.Publish("orders"))

			require.NoError(t, dropped.Rollback())
			require.NoError(t, kept.Commit())
			var ids []string
			for _, row := range b.stored(t) {
				ids = append(ids, row.ID)
			}
			require.Equal(t, []string{"1", "2", "3", "4", "6", "7"}, ids)
		})
	}
}

// A wrapper's type may be comparable and what it holds not: == would panic.
func TestPublishInTransactionsThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	tx := b.begin(t)
	first, second := newMessage("1", "x"), newMessage("2", "x")
	for _, msg := range []*message.Message{first, second} {
		msg.SetContext(outbox.ContextWithTx(t.Context(), wrapper{Tx: tx, inner: []int{1}}))
	}
	require.NoError(t, b.publisher.Publish("orders", first, second))
	require.NoError(t, tx.Commit())
	require.Len(t, b.stored(t), 2)
}

func TestPublishWithoutTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	tx := &countingTx{}
	with := newMessage("with", "x")
	with.SetContext(outbox.ContextWithTx(t.Context(), tx))
	err := b.publisher.Publish("orders", with, newMessage("without", "x"))
	require.ErrorIs(t, err, outbox.ErrNoTx)
	require.ErrorContains(t, err, `message 1 ("without"): outbox: no transaction: `)
	require.Zero(t, tx.statements)
	require.ErrorIs(t, b.publisher.PublishTx(t.Context(), nil, "orders", with), outbox.ErrNoTx)
	var none *sql.Tx
	require.ErrorIs(t, b.publisher.PublishTx(t.Context(), none, "orders", with), outbox.ErrNoTx)
	require.ErrorIs(t, b.publisher.Publish("orders", nil), outbox.ErrInvalidMessage)
	require.ErrorIs(t, b.publisher.InTx(tx).Publish("orders", nil), outbox.ErrInvalidMessage)
}

func TestDatabaseErrorsKeepTheirSQLState(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			b := setup(t, driver)
			_, err := b.db.ExecContext(t.Context(), `DROP TABLE `+b.db.Schema.Outbox())
			require.NoError(t, err)
			err = b.publisher.PublishTx(t.Context(), b.begin(t), "orders", newMessage("1", "x"))
			var coded interface{ SQLState() string }
			require.ErrorAs(t, err, &coded)
			require.Equal(t, "42P01", coded.SQLState())
			require.ErrorIs(t, err, schema.ErrNotMigrated)
			require.ErrorContains(t, err, b.db.Schema.Outbox())
		})
	}
}

func TestNewPublisherChecksNames(t *testing.T) {
	t.Parallel()
	_, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: schema.Postgres{Name: "\xff"}}, nil)
	require.ErrorIs(t, err, schema.ErrInvalidName)
}

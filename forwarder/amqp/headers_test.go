package amqp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// headersBundle is the whole way of a message, through PublishTx, the forwarder and a
// queue.
type headersBundle struct {
	db        *testdb.DB
	publisher *outbox.Publisher
	queue     string
	received  <-chan *message.Message
}

// setupHeaders subscribes with watermill-amqp's own marshaler where the queue is classic.
func setupHeaders(t *testing.T, arguments amqp091.Table) *headersBundle {
	t.Helper()
	b := &headersBundle{db: testdb.New(t), queue: testamqp.Name(t)}
	testamqp.DeleteQueueAfter(t, b.queue)
	cfg := amqp.NewQueueConfig(testamqp.URI())
	cfg.AMQP.Queue.Arguments = arguments
	subscriber := cfg.AMQP
	if arguments == nil {
		subscriber.Marshaler = amqp.Marshaler{}.DefaultMarshaler
	}
	var err error
	b.publisher, err = outbox.NewPublisher(outbox.PublisherConfig{Schema: b.db.Schema}, nil)
	require.NoError(t, err)
	runForwarder(t, b.db, newPublisher(t, cfg))
	b.received = subscribe(t, subscriber, b.queue)
	return b
}

func (b *headersBundle) send(t *testing.T, msg *message.Message) error {
	t.Helper()
	tx, err := b.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	published := b.publisher.PublishTx(t.Context(), tx, b.queue, msg)
	require.NoError(t, tx.Commit())
	return published
}

// survivesOrIsRefused returns whether the metadata was refused.
func (b *headersBundle) survivesOrIsRefused(t *testing.T, name string, metadata message.Metadata) (refusal error) {
	t.Helper()
	sent := message.NewMessage(name, []byte("x"))
	sent.Metadata = maps.Clone(metadata)
	if err := b.send(t, sent); err != nil {
		require.ErrorIs(t, err, outbox.ErrInvalidMessage)
		var rows int
		require.NoError(t, b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+b.db.Schema.Outbox()+` WHERE id = $1`, name).Scan(&rows))
		require.Zero(t, rows, "nothing is written")
		return err
	}
	got := receive(t, b.received)
	require.Equal(t, name, got.UUID)
	for key := range got.Metadata {
		if strings.HasPrefix(key, amqp.BrokerHeaderPrefix) {
			delete(got.Metadata, key)
		}
	}
	require.Len(t, got.Metadata, len(metadata), name)
	for key, value := range metadata {
		arrived, ok := got.Metadata[key]
		require.True(t, ok && arrived == value, "%s: key %.40q: %.40q arrived as %.40q", name, key, value, arrived)
	}
	return nil
}

func forEachQueueType(t *testing.T, test func(t *testing.T, arguments amqp091.Table)) {
	t.Helper()
	for name, arguments := range map[string]amqp091.Table{
		"classic": nil, "quorum": {amqp091.QueueTypeArg: amqp091.QueueTypeQuorum},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, arguments)
		})
	}
}

// Each metadata key and its value arrive, byte for byte, or the message is refused with a
// reason before anything is written.
func TestMetadataSurvivesOrIsRefused(t *testing.T) {
	t.Parallel()
	var controls strings.Builder
	for r := rune(1); r < ' '; r++ {
		controls.WriteRune(r)
	}
	many := message.Metadata{}
	for n := range 3000 {
		many[fmt.Sprintf("key-%d", n)] = fmt.Sprint(n)
	}
	long := strings.Repeat("k", 255)
	largest := message.Metadata{"k": strings.Repeat("v", outbox.MaxMetadataBytes-len(`{"k":""}`))}
	const reserved = "is reserved"
	cases := map[string]struct {
		metadata message.Metadata
		refused  string // part of the reason; empty: it arrives
	}{
		"none":            {metadata: message.Metadata{}},
		"empty value":     {metadata: message.Metadata{"key": ""}},
		"empty key":       {metadata: message.Metadata{"": "value"}},
		"controls":        {metadata: message.Metadata{controls.String(): controls.String()}},
		"unicode":         {metadata: message.Metadata{"clé 鍵 🔑": "é e\u0301 値 🎁 \u202e \ufeff \ufffd \uffff \U0010ffff \u2028 \u0085"}},
		"white space":     {metadata: message.Metadata{" ": "  ", " key ": "\r\nvalue\t", "\n": "\n"}},
		"looks escaped":   {metadata: message.Metadata{`\u0000`: `\u0000 \x00 "`, `{"a":1}`: `[null]`, "<a>&": "</a>&amp;"}},
		"looks typed":     {metadata: message.Metadata{"null": "null", "true": "true", "1": "1e400", "date": "2024-01-01"}},
		"case":            {metadata: message.Metadata{"Key": "1", "key": "2", "KEY": "3", "cc": "4", "Bcc": "5", "X-Death": "6"}},
		"longest key":     {metadata: message.Metadata{long: "v"}},
		"longest key, é":  {metadata: message.Metadata{"x" + strings.Repeat("é", 127): "v"}},
		"largest":         {metadata: largest},
		"many":            {metadata: many},
		"partition key":   {metadata: message.Metadata{outbox.PartitionKeyMetadata: "order-7"}},
		"routing key":     {metadata: message.Metadata{amqp.DefaultRoutingKeyMetadata: "orders.created"}},
		"broker's prefix": {metadata: message.Metadata{"_watermill_": "3", "x-request-id": "4", "x-delay": "5000", "x-match": "any", "x-stream-filter-value": "f"}},
		"properties": {metadata: message.Metadata{
			"message-id": "1", "content-type": "2", "reply-to": "3", "expiration": "4", "user-id": "5", "priority": "6", "delivery-mode": "7",
			"x-expires": "8", "x-message-ttl": "9", "x-received-from": "10", "x-queue-type": "11", "x-dead-letter-exchange": "12", "x-shovelled": "13",
		}},
		"NUL in a value":   {message.Metadata{"key": "a\x00b"}, `the value of metadata key "key" holds a NUL byte`},
		"NUL in a key":     {message.Metadata{"a\x00b": "v"}, `the metadata key "a\x00b" holds a NUL byte`},
		"value not UTF-8":  {message.Metadata{"key": "\xff"}, "is not valid UTF-8"},
		"key not UTF-8":    {message.Metadata{"\xff": "v"}, "is not valid UTF-8"},
		"key too long":     {message.Metadata{long + "k": "v"}, "a metadata key has 256 bytes, at most 255"},
		"key far too long": {message.Metadata{strings.Repeat("k", 100_000): "v"}, "a metadata key has 100000 bytes, at most 255"},
		"too large":        {message.Metadata{"k": largest["k"] + "v"}, "its metadata has"},
	}
	for _, name := range []string{
		"_watermill_message_uuid", "CC", "BCC", "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
		"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason", "x-delivery-count", "x-acquired-count", "x-stream-offset",
	} {
		c := cases[name]
		c.metadata, c.refused = message.Metadata{name: "mine"}, reserved
		cases[name] = c
	}
	forEachQueueType(t, func(t *testing.T, arguments amqp091.Table) {
		b := setupHeaders(t, arguments)
		for name, test := range cases {
			err := b.survivesOrIsRefused(t, name, test.metadata)
			if test.refused == "" {
				require.NoError(t, err, name)
			} else {
				require.ErrorContains(t, err, test.refused, name)
			}
		}
		requireDrained(t, b.db)
	})
}

// Any text: what is taken arrives.
func TestRandomMetadataSurvivesOrIsRefused(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	alphabet := []string{
		"a", "Z", "0", " ", "-", "_", ".", "x-", "CC", "x-death", "é", "鍵", "🔑", "\n", "\t", "\x01", "\x7f", "\u0085", "\u2028", "\ufffd", "\uffff",
		"\"", "\\", "\\u0000", "{", "}", "'", "$1", "%s", "<", "&", "\x00", "\xff", "\xc3", "\xed\xa0\x80",
	}
	text := func(longest int) string {
		var text strings.Builder
		for range random.IntN(longest + 1) {
			i := random.IntN(len(alphabet))
			if i >= len(alphabet)-4 && random.IntN(8) > 0 { // else nearly all are refused
				i = 0
			}
			text.WriteString(alphabet[i])
		}
		return text.String()
	}
	b := setupHeaders(t, nil)
	taken, refused := 0, 0
	for n := range 300 {
		metadata := message.Metadata{}
		for range random.IntN(6) {
			metadata[text(8)] = text(30)
		}
		if b.survivesOrIsRefused(t, fmt.Sprint(n), metadata) == nil {
			taken++
		} else {
			refused++
		}
	}
	require.Greater(t, taken, 30)
	require.Greater(t, refused, 10)
}

// A row that was written in SQL may hold what Go's publisher refuses. It alone is a dead
// letter, at once, since no attempt can help: the channel stays open, so that nothing of what goes out with it is sent twice.
func TestMetadataWrittenInSQLIsRefusedAlone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	queue := testamqp.NewQueue(t, nil)
	reasons := map[string]string{
		`{"CC": "someone"}`:                             "%RabbitMQ wants a list of routing keys in the header CC%",
		`{"BCC": ["a", "b"]}`:                           "%RabbitMQ wants a list of routing keys in the header BCC%",
		`{"_watermill_message_uuid": "other"}`:          "%reserved for the event id%",
		`{"` + strings.Repeat("k", 256) + `": "v"}`:     "%has 256 bytes, at most 255 are allowed%",
		`{"k": "` + strings.Repeat("v", 200_000) + `"}`: "%too large for one AMQP frame%",
	}
	for n, id := range ids("m", 20) {
		insert(t, db, queue, "", id)
		if n%4 == 2 {
			metadata := slices.Sorted(maps.Keys(reasons))[n/4]
			_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload, metadata)
				VALUES ($1, $2, 'x', $3)`, fmt.Sprintf("poison-%d", n), queue, metadata)
			require.NoError(t, err)
		}
	}
	runForwarder(t, db, newPublisher(t, queues()))
	require.ElementsMatch(t, ids("m", 20), takeIDs(t, queue, 20))
	for metadata, reason := range reasons {
		require.Eventually(t, func() bool {
			var isDead bool
			err := db.QueryRowContext(t.Context(), `SELECT attempts = 1 AND error LIKE $1 FROM `+db.Schema.DeadLetters()+` WHERE metadata = $2`,
				reason, metadata).Scan(&isDead)
			return err == nil && isDead
		}, patience, 5*time.Millisecond, "%.60s", metadata)
	}
	require.Zero(t, outboxRows(t, db, `true`))
	require.Zero(t, testamqp.Length(t, queue), "nothing was sent twice")
}

// A value that is no text arrives as its JSON.
func TestMetadataWrittenInSQLArrivesAsText(t *testing.T) {
	t.Parallel()
	b := setupHeaders(t, nil)
	_, err := b.db.ExecContext(t.Context(), `INSERT INTO `+b.db.Schema.Outbox()+` (id, destination, payload, metadata)
		VALUES ('1', $1, 'x', '{"text": "a", "number": 7, "list": [1, "b"], "none": null, "x-death": "mine"}')`, b.queue)
	require.NoError(t, err)
	require.Equal(t,
		message.Metadata{"text": "a", "number": "7", "list": `[1, "b"]`, "none": "null", "x-death": "mine"},
		receive(t, b.received).Metadata)
}

// What one delivery brought can be passed on with all its metadata: the outbox's
// publisher refuses nothing of it.
func TestWhatArrivedCanBePassedOn(t *testing.T) {
	t.Parallel()
	b := setupHeaders(t, nil)
	msg, err := amqp.Marshaler{}.Unmarshal(amqp091.Delivery{Headers: foreignHeaders(), MessageId: "1"})
	require.NoError(t, err)
	require.NotEmpty(t, msg.Metadata[amqp.BrokerHeaderPrefix+"x-death"])
	require.NoError(t, b.survivesOrIsRefusedCopy(t, msg))
}

// survivesOrIsRefusedCopy sends a message on; all that it has arrives.
func (b *headersBundle) survivesOrIsRefusedCopy(t *testing.T, msg *message.Message) error {
	t.Helper()
	if err := b.send(t, msg.Copy()); err != nil {
		return err
	}
	got := receive(t, b.received)
	if !maps.Equal(got.Metadata, msg.Metadata) {
		encoded, err := json.Marshal(got.Metadata)
		return errors.Join(fmt.Errorf("arrived as %s", encoded), err) //nolint:err113 // of a test
	}
	return nil
}

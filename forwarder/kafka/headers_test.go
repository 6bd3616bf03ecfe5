package kafka_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

// Whatever metadata the outbox's publisher takes, watermill-kafka's subscriber has it,
// key for key and byte for byte.
func TestEveryMetadataSurvives(t *testing.T) {
	t.Parallel()
	var controls strings.Builder
	for r := rune(1); r < 0x100; r++ {
		controls.WriteRune(r)
	}
	many := message.Metadata{}
	for n := range 5000 {
		many[fmt.Sprintf("key-%d", n)] = fmt.Sprint(n)
	}
	db := testdb.New(t)
	topic := testkafka.NewTopic(t, 1)
	received := subscribe(t, topic)
	runForwarder(t, db)
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: db.Schema}, nil)
	require.NoError(t, err)
	for name, metadata := range map[string]message.Metadata{
		"none":          {},
		"empty value":   {"key": ""},
		"empty key":     {"": "value"},
		"both empty":    {"": ""},
		"controls":      {controls.String()[:127]: controls.String(), controls.String()[127:381]: ""},
		"unicode":       {"clé 鍵 🔑": "é e\u0301 値 🎁 \u202e \ufeff \ufffd \uffff \U0010ffff \u2028 \u0085"},
		"white space":   {" ": "  ", " key ": "\r\nvalue\t", "\n": "\n"},
		"looks binary":  {"\x7f\u0080": "\x01\x02\x7f\u0080\u00ff"},
		"looks escaped": {`\u0000`: `\u0000 \x00 %00 &#0; \\ "`, `{"a":1}`: `[null]`, "'": "''", "<a>&": "</a>&amp;"},
		"looks typed":   {"null": "null", "true": "true", "1": "1e400", "date": "2024-01-01"},
		"upper case":    {"Key": "1", "key": "2", "KEY": "3"},
		"long":          {strings.Repeat("k", outbox.MaxMetadataKeyBytes): strings.Repeat("v", 120_000)},
		"many":          many,
		// Reserved elsewhere, or close to what is reserved here.
		"names": {
			outbox.PartitionKeyMetadata: "order-7", "_watermill_message_uuid2": "1", "_WATERMILL_MESSAGE_UUID": "2", "_watermill_": "3",
			"id": "4", "uuid": "5", "key": "6", "payload": "7", "x-retries": "8", "content-type": "9", "__TypeId__": "10", "traceparent": "11",
			"correlation_id": "12", "_watermill_requeue_retries": "13", "reason_poisoned": "14", "__connect.errors.topic": "15",
		},
	} {
		msg := message.NewMessage(name, []byte("x"))
		msg.Metadata = metadata
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, publisher.PublishTx(t.Context(), tx, topic, msg), name)
		require.NoError(t, tx.Commit())
		got := receive(t, received)
		require.Equal(t, name, got.UUID)
		require.Len(t, got.Metadata, len(metadata), name)
		for key, value := range metadata {
			gotValue, ok := got.Metadata[key]
			require.True(t, ok && gotValue == value, "%s: the value of %.40q", name, key)
		}
	}
	requireEmptyOutbox(t, db)
}

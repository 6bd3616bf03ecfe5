package kafka_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

// Batches lie in the log as the Config says, and watermill-kafka's subscriber reads them.
func TestCompression(t *testing.T) {
	t.Parallel()
	for compression, attribute := range map[kafka.Compression]uint8{ // KIP-98, "Message Set Changes"
		"": 0, kafka.NoCompression: 0, kafka.Gzip: 1, kafka.Snappy: 2, kafka.LZ4: 3, kafka.Zstd: 4,
	} {
		t.Run(fmt.Sprintf("%q", compression), func(t *testing.T) {
			t.Parallel()
			topic := testkafka.NewTopic(t, 1)
			received := subscribe(t, topic)
			payload := strings.Repeat("compressible ", 500)
			publisher := newPublisher(t, kafka.Config{Compression: compression})
			results := publish(t, publisher, outgoing(topic, "a", "1", payload), outgoing(topic, "b", "2", payload))
			require.NoError(t, results[0])
			require.NoError(t, results[1])
			for i, record := range testkafka.NewConsumer(t, topic).Take(t, 2) {
				require.Equal(t, attribute, record.Attrs.CompressionType())
				require.Equal(t, payload, string(record.Value))
				msg := receive(t, received)
				require.Equal(t, fmt.Sprint(i+1), msg.UUID)
				require.Equal(t, payload, string(msg.Payload))
			}
		})
	}
}

// What a topic takes is a matter of the compressed batch.
func TestTopicTakesWhatFitsOnceCompressed(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1, "max.message.bytes", "10000")
	large := strings.Repeat("x", 100_000)
	msgs := []forwarder.Outgoing{
		outgoing(topic, "a", "1", large), outgoing(topic, "b", "2", string(incompressible(20_000))), outgoing(topic, "c", "3", large),
	}
	results := publish(t, newPublisher(t, kafka.Config{Compression: kafka.LZ4}), msgs...)
	require.NoError(t, results[0])
	require.ErrorIs(t, results[1], forwarder.ErrRefused)
	require.NoError(t, results[2])
	for i, want := range []string{"1", "3"} {
		require.Equal(t, want, idOf(t, testkafka.NewConsumer(t, topic).Take(t, 2)[i]))
	}
	for _, err := range publish(t, newPublisher(t, kafka.Config{}), msgs...) {
		require.ErrorIs(t, err, forwarder.ErrRefused)
	}
}

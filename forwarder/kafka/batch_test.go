package kafka_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

func outgoing(topic, key, id, payload string) forwarder.Outgoing {
	return forwarder.Outgoing{Destination: topic, PartitionKey: key, Message: message.NewMessage(id, []byte(payload))}
}

func publish(t *testing.T, publisher *kafka.Publisher, msgs ...forwarder.Outgoing) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return publisher.PublishBatch(ctx, msgs)
}

func idOf(t *testing.T, record *kgo.Record) string {
	t.Helper()
	for _, header := range record.Headers {
		if header.Key == "_watermill_message_uuid" {
			return string(header.Value)
		}
	}
	require.Fail(t, "a record without an id")
	return ""
}

func TestBatchKeepsOrderWithinKeys(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 4)
	publisher := newPublisher(t, kafka.Config{})
	var msgs []forwarder.Outgoing
	for n := range 200 {
		msgs = append(msgs, outgoing(topic, fmt.Sprintf("key-%d", n%5), fmt.Sprint(n), "x"))
	}
	for _, err := range publish(t, publisher, msgs...) {
		require.NoError(t, err)
	}
	last := map[string]int{}
	for _, record := range testkafka.NewConsumer(t, topic).Take(t, 200) {
		var n int
		_, err := fmt.Sscan(idOf(t, record), &n)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("key-%d", n%5), string(record.Key))
		previous, seen := last[string(record.Key)]
		require.True(t, !seen && n < 5 || seen && n == previous+5, "%d after %d", n, previous)
		last[string(record.Key)] = n
	}
}

// The client refuses a message that it knows to be too large, the broker the whole
// batch of records with it: either way only that message fails, and those behind it in
// its unit are not sent.
func TestTooLargeMessageFailsAlone(t *testing.T) {
	t.Parallel()
	for name, maxMessageBytes := range map[string]int{"by the client": 10_000, "by the broker": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := testkafka.NewTopic(t, 1, "max.message.bytes", "10000")
			publisher := newPublisher(t, kafka.Config{MaxMessageBytes: maxMessageBytes})
			large := outgoing(topic, "a", "a-2", string(incompressible(20_000)))
			results := publish(t, publisher,
				outgoing(topic, "a", "a-1", "x"), outgoing(topic, "b", "b-1", "x"),
				large, outgoing(topic, "a", "a-3", "x"),
				outgoing(topic, "b", "b-2", "x"), outgoing(topic, "c", "c-1", "x"))
			for i, want := range []error{nil, nil, forwarder.ErrRefused, forwarder.ErrKeyHeld, nil, nil} {
				require.ErrorIs(t, results[i], want, "message %d", i)
			}
			var got []string
			for _, record := range testkafka.NewConsumer(t, topic).Take(t, 4) {
				got = append(got, idOf(t, record))
			}
			require.ElementsMatch(t, []string{"a-1", "b-1", "b-2", "c-1"}, got)
			require.NoError(t, publish(t, publisher, outgoing(topic, "a", "a-4", "x"))[0], "the client works on")
		})
	}
}

// A topic may take less than a batch that the client library makes: what is not to blame
// is delivered, once, whatever else is in the batch.
func TestBatchThatIsTooLargeForTheTopic(t *testing.T) {
	t.Parallel()
	for name, tooLarge := range map[string][]int{"all fit": nil, "some do not": {0, 77, 78, 199}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := testkafka.NewTopic(t, 2, "max.message.bytes", "10000")
			publisher := newPublisher(t, kafka.Config{})
			var msgs []forwarder.Outgoing
			var want []string
			for n := range 200 {
				id, size := fmt.Sprint(n), 1000
				if slices.Contains(tooLarge, n) {
					size = 20_000
				} else {
					want = append(want, id)
				}
				msgs = append(msgs, outgoing(topic, id, id, string(incompressible(size))))
			}
			for n, err := range publish(t, publisher, msgs...) {
				if slices.Contains(tooLarge, n) {
					require.ErrorIs(t, err, forwarder.ErrRefused)
					require.ErrorContains(t, err, "max.message.bytes")
				} else {
					require.NoError(t, err, "message %d", n)
				}
			}
			require.NoError(t, publish(t, publisher, outgoing(topic, "last", "last", "x"))[0])
			var got []string
			for _, record := range testkafka.NewConsumer(t, topic).Take(t, len(want)+1) {
				got = append(got, idOf(t, record))
			}
			require.ElementsMatch(t, append(want, "last"), got)
		})
	}
}

// The client library sends what several callers send just then in one batch of records: nobody is
// refused for the fault of somebody else's message.
func TestTooLargeMessageOfAnotherBatch(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1, "max.message.bytes", "10000")
	publisher := newPublisher(t, kafka.Config{})
	const senders, rounds = 8, 40
	var sending sync.WaitGroup
	for sender := range senders {
		sending.Go(func() {
			for round := range rounds {
				id := fmt.Sprint(sender, "-", round)
				size, isTooLarge := 10, sender%2 == 0
				if isTooLarge {
					size = 20_000
				}
				err := publish(t, publisher, outgoing(topic, id, id, string(incompressible(size))))[0]
				if isTooLarge {
					assert.ErrorIs(t, err, forwarder.ErrRefused)
				} else {
					assert.NoError(t, err)
				}
			}
		})
	}
	sending.Wait()
}

func incompressible(n int) []byte {
	payload := make([]byte, n)
	state := uint32(1)
	for i := range payload {
		state ^= state << 13
		state ^= state >> 17
		state ^= state << 5
		payload[i] = byte(state)
	}
	return payload
}

func TestUnknownTopicFailsAlone(t *testing.T) {
	t.Parallel()
	topic, unknown := testkafka.NewTopic(t, 1), testkafka.TopicName(t)
	publisher := newPublisher(t, kafka.Config{})
	msgs := []forwarder.Outgoing{
		outgoing(unknown, "a", "1", "x"), outgoing(topic, "a", "2", "x"),
		outgoing(unknown, "a", "3", "x"), outgoing("not a topic!", "a", "4", "x"),
	}
	results := publish(t, publisher, msgs...)
	require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable)
	require.ErrorContains(t, results[0], unknown)
	require.NoError(t, results[1])
	require.ErrorIs(t, results[2], forwarder.ErrKeyHeld)
	require.ErrorIs(t, results[3], forwarder.ErrDestinationUnavailable)

	testkafka.CreateTopic(t, unknown, 1)
	require.NoError(t, publish(t, publisher, msgs[0])[0], "an absence is not remembered")
}

// Some names no topic can have. They harm no other message, and are not waited for.
func TestNameThatNoTopicCanHaveFailsAlone(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	publisher := newPublisher(t, kafka.Config{})
	for _, name := range []string{"", ".", "..", "a b", "é", "a\x00", "\xff\xfe", strings.Repeat("x", 250), strings.Repeat("x", 40_000), topic + "\n"} {
		results := publish(t, publisher, outgoing(name, "a", "1", "x"), outgoing(topic, "a", "2", "x"))
		require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable, "%.20q", name)
		require.NoError(t, results[1], "%.20q", name)
		require.ErrorIs(t, publish(t, publisher, outgoing(name, "a", "1", "x"))[0], forwarder.ErrDestinationUnavailable, "%.20q", name)
	}
}

// A topic that lacks replicas, as after the loss of a broker, takes no more time from the
// others than an election.
func TestTopicWithoutReplicasFailsAlone(t *testing.T) {
	t.Parallel()
	topic, starved := testkafka.NewTopic(t, 1), testkafka.NewStarvedTopic(t)
	publisher := newPublisher(t, kafka.Config{})
	results := publish(t, publisher,
		outgoing(starved, "a", "1", "x"), outgoing(topic, "a", "2", "x"),
		outgoing(starved, "a", "3", "x"), outgoing(topic, "a", "4", "x"))
	require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable)
	require.ErrorContains(t, results[0], "NOT_ENOUGH_REPLICAS")
	require.NoError(t, results[1])
	require.ErrorIs(t, results[2], forwarder.ErrKeyHeld)
	require.NoError(t, results[3])
	require.Len(t, testkafka.NewConsumer(t, topic).Take(t, 2), 2)
}

// A topic that was deleted and created again has a new id: the client must not insist
// on the old one.
func TestRecreatedTopicIsWrittenAgain(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	publisher := newPublisher(t, kafka.Config{})
	require.NoError(t, publish(t, publisher, outgoing(topic, "a", "1", "x"))[0])
	testkafka.DeleteTopic(t, topic)
	testkafka.CreateTopic(t, topic, 1)
	require.Eventually(t, func() bool {
		return publish(t, publisher, outgoing(topic, "a", "2", "x"))[0] == nil
	}, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, "2", idOf(t, testkafka.NewConsumer(t, topic).Take(t, 1)[0]))
}

// One caller's cancelled context is no concern of the others.
func TestCancelledPublishLeavesBatchesAlone(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	publisher := newPublisher(t, kafka.Config{})
	var others sync.WaitGroup
	for n := range 4 {
		others.Go(func() {
			for i := range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%10)*200*time.Microsecond)
				msg := message.NewMessage(fmt.Sprintf("cancelled-%d-%d", n, i), nil)
				msg.SetContext(ctx)
				_ = publisher.Publish(topic, msg) // whether it was sent in time is open
				cancel()
			}
		})
	}
	for i := range 200 {
		results := publish(t, publisher, outgoing(topic, "a", fmt.Sprint(i), "x"), outgoing(topic, "b", fmt.Sprint(i), "x"))
		require.NoError(t, results[0])
		require.NoError(t, results[1])
	}
	others.Wait()
}

func TestMarshallingIsCheckedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	publisher := newPublisher(t, kafka.Config{})
	for _, value := range []string{"other", ""} {
		reserved := outgoing(topic, "a", "2", "x")
		reserved.Message.Metadata.Set("_watermill_message_uuid", value)
		results := publish(t, publisher, outgoing(topic, "a", "1", "x"), reserved, outgoing(topic, "a", "3", "x"))
		require.NoError(t, results[0])
		require.ErrorIs(t, results[1], forwarder.ErrRefused)
		require.ErrorContains(t, results[1], "_watermill_message_uuid")
		require.ErrorIs(t, results[2], forwarder.ErrKeyHeld)
	}

	panicking := newPublisher(t, kafka.Config{Marshaler: panicMarshaler{}})
	require.ErrorIs(t, publish(t, panicking, outgoing(topic, "a", "4", "x"))[0], forwarder.ErrRefused)
}

type panicMarshaler struct{}

func (panicMarshaler) Marshal(string, *message.Message) (*sarama.ProducerMessage, error) {
	panic("test: panic")
}

func TestPartitionersAgreeWithOtherClients(t *testing.T) {
	t.Parallel()
	const partitions = 7
	topic := testkafka.NewTopic(t, partitions)
	// Hashes from the Java client's own tests.
	javaHashes := map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	}
	saramaPartitioner := sarama.NewHashPartitioner(topic)
	want := map[string]int32{}
	var java, goClients []forwarder.Outgoing
	for key, hash := range javaHashes {
		java = append(java, outgoing(topic, key, "java "+key, "x"))
		want["java "+key] = (hash & 0x7fffffff) % partitions
	}
	keys := slices.Collect(maps.Keys(javaHashes))
	for n := range 50 {
		keys = append(keys, fmt.Sprint("order-", n), fmt.Sprint("ключ 鍵 ", n))
	}
	for _, key := range keys {
		partition, err := saramaPartitioner.Partition(&sarama.ProducerMessage{Key: sarama.StringEncoder(key)}, partitions)
		require.NoError(t, err)
		goClients = append(goClients, outgoing(topic, key, "sarama "+key, "x"))
		want["sarama "+key] = partition
	}
	publish(t, newPublisher(t, kafka.Config{}), java...)
	publish(t, newPublisher(t, kafka.Config{Partitioner: kafka.FNV1a}), goClients...)
	got := map[string]int32{}
	for _, record := range testkafka.NewConsumer(t, topic).Take(t, len(want)) {
		got[idOf(t, record)] = record.Partition
	}
	require.Equal(t, want, got)
}

func TestPlainPublishWaitsForTheConfirmation(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	publisher := newPublisher(t, kafka.Config{})
	require.NoError(t, publisher.Publish(topic, message.NewMessage("1", []byte("x")), message.NewMessage("2", []byte("y"))))
	records := testkafka.NewConsumer(t, topic).Take(t, 2)
	require.Equal(t, "1", idOf(t, records[0]))
	require.Equal(t, "1", string(records[0].Key))
	require.Equal(t, "y", string(records[1].Value))

	err := publisher.Publish(testkafka.TopicName(t), message.NewMessage("3", nil))
	require.ErrorIs(t, err, forwarder.ErrDestinationUnavailable)
}

// A broker that takes connections and never answers.
func TestSilentBrokerIsBoundedByTheContext(t *testing.T) {
	t.Parallel()
	var listen net.ListenConfig
	silent, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: []string{silent.Addr().String()}}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	results := publisher.PublishBatch(ctx, []forwarder.Outgoing{outgoing("x", "a", "1", ""), outgoing("x", "b", "2", "")})
	require.Len(t, results, 2)
	require.ErrorIs(t, results[0], forwarder.ErrUnavailable)
	require.ErrorIs(t, results[1], forwarder.ErrUnavailable)

	require.NoError(t, publisher.Close())
	require.NoError(t, publisher.Close(), "closing twice does no harm")
	require.ErrorIs(t, publisher.PublishBatch(t.Context(), []forwarder.Outgoing{outgoing("x", "a", "1", "")})[0], kafka.ErrClosed)
}

func TestConfigReportsAllErrorsAtOnce(t *testing.T) {
	t.Parallel()
	brokers := []string{"good:9092", "kafka://a:9092", "a:9092,b:9092", "", "a"}
	_, err := kafka.NewPublisher(kafka.Config{Brokers: brokers}, nil)
	require.ErrorIs(t, err, kafka.ErrInvalidConfig)
	require.NotContains(t, err.Error(), "good")
	for _, bad := range brokers[1:] {
		require.ErrorContains(t, err, fmt.Sprintf("Brokers has %q", bad))
	}
	_, err = kafka.NewPublisher(kafka.Config{Partitioner: "md5", MaxMessageBytes: -1}, nil)
	require.ErrorIs(t, err, kafka.ErrInvalidConfig)
	for _, text := range []string{
		"Brokers is empty", `Partitioner is "md5", allowed are "murmur2" and "fnv1a"`, "MaxMessageBytes is -1, allowed is 512 to 104857600",
	} {
		require.ErrorContains(t, err, text)
	}
}

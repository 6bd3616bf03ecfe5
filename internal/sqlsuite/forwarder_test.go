package sqlsuite_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

// What the stock publisher writes is an outbox row like any other.
func TestForwarderSendsWhatTheStockPublisherWrote(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			topic := testkafka.NewTopic(t, 3)
			runForwarder(t, db, forwarder.Config{})

			sent := message.NewMessage("event-1", []byte{0, 1, 0xff, 0xfe})
			sent.Metadata = message.Metadata{outbox.PartitionKeyMetadata: "order-7", "type": "order.created", "text": "é\n\\"}
			unkeyed := message.NewMessage("event-2", []byte(`{"path":"C:\\dir","accent":"\u00e9"}`))
			require.NoError(t, newPublisher(t, testdb.Open(t, driver, db.DSN), db.Schema).Publish(topic, sent, unkeyed))

			records := map[string]*kgo.Record{}
			for _, record := range testkafka.NewConsumer(t, topic).Take(t, 2) {
				records[string(record.Key)] = record
			}
			require.Contains(t, records, "order-7")
			require.Equal(t, []byte(sent.Payload), records["order-7"].Value)
			require.Equal(t, map[string]string{
				"_watermill_message_uuid":   "event-1",
				outbox.PartitionKeyMetadata: "order-7",
				"type":                      "order.created",
				"text":                      "é\n\\",
			}, headers(records["order-7"]))
			require.Contains(t, records, "event-2")
			require.Equal(t, []byte(unkeyed.Payload), records["event-2"].Value)
			require.Equal(t, map[string]string{"_watermill_message_uuid": "event-2"}, headers(records["event-2"]))
			requireEmptyOutbox(t, db)
		})
	}
}

// Nobody should run both on one table, but somebody will: each message then goes to the
// broker or to the subscriber, never to both and never to neither.
func TestEachRowGoesToTheForwarderOrToTheSubscriber(t *testing.T) {
	t.Parallel()
	const units, perUnit, partitions = 10, 30, 3
	db := testdb.New(t)
	topic := testkafka.NewTopic(t, partitions)
	ids := make([]string, units*perUnit)
	msgs := make([]*message.Message, len(ids))
	for i := range msgs {
		ids[i] = fmt.Sprint(i)
		msgs[i] = message.NewMessage(ids[i], nil)
		msgs[i].Metadata.Set(outbox.PartitionKeyMetadata, fmt.Sprint(i%units))
	}
	require.NoError(t, newPublisher(t, db.DB, db.Schema).Publish(topic, msgs...))

	subscriber := newSubscriber(t, db.DB, db.Schema)
	received, err := subscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	first := receive(t, received)
	runForwarder(t, db, forwarder.Config{BatchSize: 3, DatabaseTimeout: time.Second})
	consumer := testkafka.NewConsumer(t, topic)
	forwarded := consumer.Take(t, 1) // it goes round what the subscriber holds
	first.Ack()
	toSubscriber := []string{first.UUID}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for msg := range received {
			toSubscriber = append(toSubscriber, msg.UUID)
			msg.Ack()
		}
	}()
	requireEmptyOutbox(t, db)
	require.NoError(t, subscriber.Close())
	<-drained

	forwarded = append(forwarded, consumer.Take(t, len(ids)-len(toSubscriber)-1)...)
	arrived := toSubscriber
	for _, record := range forwarded {
		arrived = append(arrived, headers(record)["_watermill_message_uuid"])
	}
	require.ElementsMatch(t, ids, arrived)
	require.EqualValues(t, len(forwarded), recordsIn(t, topic, partitions))
}

func recordsIn(t *testing.T, topic string, partitions int32) int64 {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(testkafka.Brokers()...))
	require.NoError(t, err)
	defer client.Close()
	ends, err := testkafka.Ends(t.Context(), client, topic, partitions)
	require.NoError(t, err)
	var records int64
	for _, end := range ends {
		records += end
	}
	return records
}

func headers(record *kgo.Record) map[string]string {
	values := map[string]string{}
	for _, header := range record.Headers {
		values[header.Key] = string(header.Value)
	}
	return values
}

package main

import (
	"context"
	"errors"
	"fmt"

	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
)

// event is an event's identity.
type event struct{ destination, id string }

// deliveries is what Kafka holds: how many records of each event.
type deliveries struct {
	records map[event]int
	// otherKey lists the events of which a record's key is not their id.
	otherKey []event
}

// repeated is the number of records beyond the first of each event.
func (d *deliveries) repeated() int {
	repeated := 0
	for _, records := range d.records {
		repeated += records - 1
	}
	return repeated
}

// readTopics reads every record of the run's topics, with neither Watermill nor this
// module in between.
func readTopics(ctx context.Context, addresses servers.Addresses) (*deliveries, error) {
	found := &deliveries{records: map[event]int{}}
	for _, destination := range []string{ordersTopic, paymentsTopic} {
		if err := found.read(ctx, addresses, destination); err != nil {
			return nil, fmt.Errorf("read topic %s: %w", addresses.Topic(destination), err)
		}
	}
	return found, nil
}

func (d *deliveries) read(ctx context.Context, addresses servers.Addresses, destination string) error {
	topic := addresses.Topic(destination)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(addresses.Brokers...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	remaining, err := countRecords(ctx, kadm.NewClient(client), topic)
	if err != nil {
		return err
	}
	for remaining > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		for record := range fetches.RecordsAll() {
			found := event{destination, eventID(record)}
			d.records[found]++
			if string(record.Key) != found.id {
				d.otherKey = append(d.otherKey, found)
			}
			remaining--
		}
	}
	return nil
}

func newAdmin(addresses servers.Addresses) (admin *kadm.Client, closeAdmin func(), err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses.Brokers...))
	if err != nil {
		return nil, nil, err
	}
	return kadm.NewClient(client), client.Close, nil
}

// countRecords asks for the ends of topics that the run has created: they begin at
// zero.
func countRecords(ctx context.Context, admin *kadm.Client, topics ...string) (records int64, err error) {
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err := errors.Join(err, ends.Error()); err != nil {
		return 0, fmt.Errorf("count records in Kafka: %w", err)
	}
	ends.Each(func(end kadm.ListedOffset) { records += end.Offset })
	return records, nil
}

func eventID(record *kgo.Record) string {
	for _, header := range record.Headers {
		if header.Key == wmkafka.UUIDHeaderKey {
			return string(header.Value)
		}
	}
	return ""
}

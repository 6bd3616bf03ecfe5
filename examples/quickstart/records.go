package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
	"github.com/watermill-outbox/outbox/forwarder/broker"
)

// event is an event's identity.
type event struct{ destination, id string }

// records are all that was published to the run's destinations, read with the broker's
// plain client: with neither Watermill nor this module in between.
type records interface {
	// keyName is what the broker calls the key of a record.
	keyName() string
	// count includes duplicates.
	count(ctx context.Context, destination string) (int64, error)
	// read goes from the first record to the last, in each call.
	read(ctx context.Context, destination string, take func(id, key string)) error
	close() error
}

func openRecords(addresses servers.Addresses) (records, error) {
	if addresses.Broker.Kind == broker.KindAMQP {
		return openRabbitMQRecords(addresses)
	}
	return openKafkaRecords(addresses)
}

var destinations = []string{ordersTopic, paymentsTopic}

func countRecords(ctx context.Context, published records) (sum int64, err error) {
	for _, destination := range destinations {
		n, err := published.count(ctx, destination)
		if err != nil {
			return 0, fmt.Errorf("count records of %s: %w", destination, err)
		}
		sum += n
	}
	return sum, nil
}

// deliveries is what the broker holds: how many records of each event.
type deliveries struct {
	broker, keyName string
	records         map[event]int
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

func readDeliveries(ctx context.Context, addresses servers.Addresses) (_ *deliveries, err error) {
	published, err := openRecords(addresses)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, published.close()) }()
	found := &deliveries{broker: addresses.BrokerName(), keyName: published.keyName(), records: map[event]int{}}
	for _, destination := range destinations {
		err := published.read(ctx, destination, func(id, key string) {
			event := event{destination, id}
			found.records[event]++
			if key != id {
				found.otherKey = append(found.otherKey, event)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("read the records of %s: %w", destination, err)
		}
	}
	return found, nil
}

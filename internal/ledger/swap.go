package ledger

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Swap is a Broker that changes from Kafka to RabbitMQ, as configuration does in a
// rolling restart: the first replicas publish to the one, and those that replace them to
// the other. Consumers read both.
type Swap struct {
	kafka *Kafka
	amqp  *AMQP

	toKafka atomic.Int64
	// FromKafka and FromAMQP are how many deliveries were read from each.
	FromKafka, FromAMQP int
}

// NewSwap returns a Swap in which so many replicas start on Kafka.
func NewSwap(t *testing.T, replicas int) *Swap {
	t.Helper()
	s := &Swap{kafka: NewKafka(t), amqp: NewAMQP(t)}
	s.toKafka.Store(int64(replicas))
	return s
}

// NewDestination makes a topic, and an exchange of the same name.
func (s *Swap) NewDestination(t *testing.T) string {
	t.Helper()
	name := s.kafka.NewDestination(t)
	s.amqp.declare(t, name)
	return name
}

// Address implements Broker.
func (s *Swap) Address() BrokerAddress {
	if s.toKafka.Add(-1) >= 0 {
		return s.kafka.Address()
	}
	return s.amqp.Address()
}

// Deliveries implements Broker.
func (s *Swap) Deliveries(ctx context.Context, destination string) ([]Delivery, error) {
	first, err := s.kafka.Deliveries(ctx, destination)
	if err != nil {
		return nil, err
	}
	second, err := s.amqp.Deliveries(ctx, destination)
	if err != nil {
		return nil, err
	}
	s.FromKafka += len(first)
	s.FromAMQP += len(second)
	return append(from(kindKafka, first), from(kindAMQP, second)...), nil
}

func from(broker string, deliveries []Delivery) []Delivery {
	for i := range deliveries {
		deliveries[i].Broker = broker
	}
	return deliveries
}

// Unhandled implements Broker.
func (s *Swap) Unhandled(ctx context.Context, group, destination string) (int64, error) {
	first, err := s.kafka.Unhandled(ctx, group, destination)
	if err != nil {
		return 0, err
	}
	second, err := s.amqp.Unhandled(ctx, group, destination)
	return first + second, err
}

// Subscriber implements Broker.
func (s *Swap) Subscriber(group string) (message.Subscriber, error) {
	first, err := s.kafka.Subscriber(group)
	if err != nil {
		return nil, err
	}
	second, err := s.amqp.Subscriber(group)
	if err != nil {
		return nil, errors.Join(err, first.Close())
	}
	return subscribers{first, second}, nil
}

// subscribers is a subscriber to all of them. A service would give its router a handler
// for each.
type subscribers []message.Subscriber

func (s subscribers) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	all := make(chan *message.Message)
	var open sync.WaitGroup
	for _, subscriber := range s {
		messages, err := subscriber.Subscribe(ctx, topic)
		if err != nil {
			return nil, err
		}
		open.Go(func() {
			for msg := range messages {
				select {
				case all <- msg:
				case <-ctx.Done():
					msg.Nack()
				}
			}
		})
	}
	go func() {
		open.Wait()
		close(all)
	}()
	return all, nil
}

func (s subscribers) Close() error {
	var err error
	for _, subscriber := range s {
		err = errors.Join(err, subscriber.Close())
	}
	return err
}

package rig

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
)

// Receiver notes how long after the commit each message is received from a queue of its
// own. It is safe for concurrent use.
type Receiver struct {
	Queue string

	uri        string
	connection *amqp091.Connection

	mu        sync.Mutex
	ids       *compare.Tally
	committed map[int]time.Time
	received  map[int]time.Time
}

// NewReceiver declares a queue and begins to receive from it.
func (r Rig) NewReceiver(ctx context.Context) (*Receiver, error) {
	queue, err := rabbitMQ{uri: r.AMQPURI}.NewDestination(ctx)
	if err != nil {
		return nil, err
	}
	receiver := &Receiver{Queue: queue, uri: r.AMQPURI}
	receiver.Reset()
	if receiver.connection, err = amqp091.Dial(r.AMQPURI); err != nil {
		return nil, fmt.Errorf("RabbitMQ: %w", err)
	}
	channel, err := receiver.connection.Channel()
	if err != nil {
		return nil, errors.Join(err, receiver.Close(ctx))
	}
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		return nil, errors.Join(err, receiver.Close(ctx))
	}
	go receiver.receive(deliveries) // ends with the connection
	return receiver, nil
}

// Close deletes the queue.
func (r *Receiver) Close(ctx context.Context) error {
	return errors.Join(rabbitMQ{uri: r.uri}.Remove(ctx, r.Queue), r.connection.Close())
}

func (r *Receiver) receive(deliveries <-chan amqp091.Delivery) {
	for delivery := range deliveries {
		now := time.Now()
		msg, _ := amqp.Marshaler{}.Unmarshal(delivery) // it never fails
		r.note(msg.UUID, now)
	}
}

func (r *Receiver) note(id string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	number := r.ids.Number(id)
	if _, again := r.received[number]; number > 0 && !again {
		r.received[number] = now
	}
}

// Reset begins anew. IDs from now on are those of ID.
func (r *Receiver) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = compare.NewTally(NewPrefix(), 0)
	r.committed, r.received = map[int]time.Time{}, map[int]time.Time{}
}

// ID is the id of the message with that number, from 1.
func (r *Receiver) ID(number int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ids.ID(number)
}

// Committed notes that the transaction of a message has committed now.
func (r *Receiver) Committed(number int) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.committed[number] = now
}

// Await returns once all that was committed was received, or after a while.
func (r *Receiver) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lateEnough)
	defer cancel()
	err := await(ctx, func() (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.received) >= len(r.committed), nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // what is missing is counted as lost
	}
	return err
}

const lateEnough = 2 * time.Minute

// Delays are those of the messages that were received, in milliseconds, and how many were
// not. What was received before the commit was known to the writer has none.
func (r *Receiver) Delays() (milliseconds []float64, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for number, committed := range r.committed {
		received, ok := r.received[number]
		if !ok {
			lost++
			continue
		}
		milliseconds = append(milliseconds, max(0, received.Sub(committed).Seconds()*1000))
	}
	return milliseconds, lost
}

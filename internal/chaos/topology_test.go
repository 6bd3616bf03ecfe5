package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// frontSuffix makes the name of a destination from that of the ledger's exchange.
const frontSuffix = "_front"

// fronted is RabbitMQ where each destination is an exchange with one queue. What comes
// out of that goes to the ledger's own exchange, with its record and its consumer's
// queue. So the exchange and the queue can be deleted under load, as an operator does by
// mistake, and everything that was confirmed is still known.
type fronted struct {
	*rabbit

	uri    string
	movers map[string]*mover
	// arguments are those of the queues.
	arguments amqp091.Table
}

func newFronted(t *testing.T, amqp *rabbit, uri string) *fronted {
	t.Helper()
	return &fronted{rabbit: amqp, uri: uri, movers: map[string]*mover{}}
}

// NewDestination makes an exchange with its queue.
func (f *fronted) NewDestination(t *testing.T) string {
	t.Helper()
	destination := f.AMQP.NewDestination(t) + frontSuffix
	require.NoError(t, f.declare(destination))
	f.movers[destination] = startMover(t.Context(), f.uri, queueOf(destination), behind(destination))
	t.Cleanup(func() { require.NoError(t, f.movers[destination].stop()) })
	return destination
}

func behind(destination string) string { return strings.TrimSuffix(destination, frontSuffix) }

func queueOf(destination string) string { return destination + "_queue" }

func (f *fronted) declare(destination string) error {
	return onChannel(f.uri, func(channel *amqp091.Channel) error {
		if err := channel.ExchangeDeclare(destination, amqp091.ExchangeFanout, true, false, false, false, nil); err != nil {
			return err
		}
		if _, err := channel.QueueDeclare(queueOf(destination), true, false, false, false, f.arguments); err != nil {
			return err
		}
		return channel.QueueBind(queueOf(destination), "", destination, false, nil)
	})
}

// pause leaves what comes in the queue, until resume.
func (f *fronted) pause(destination string) error { return f.movers[destination].stop() }

func (f *fronted) resume(ctx context.Context, destination string) {
	f.movers[destination] = startMover(ctx, f.uri, queueOf(destination), behind(destination))
}

// moveSlowly takes one message after the other out of a queue that is paused.
func (f *fronted) moveSlowly(ctx context.Context, destination string, wait time.Duration) error {
	return onChannel(f.uri, func(channel *amqp091.Channel) error {
		if err := channel.Confirm(false); err != nil {
			return err
		}
		for end := time.Now().Add(wait); time.Now().Before(end); {
			const autoAck = true
			d, found, err := channel.Get(queueOf(destination), autoAck)
			if err != nil {
				return err
			}
			if found {
				err = moveOne(d, channel, behind(destination))
			}
			if err := errors.Join(err, pause(ctx, 5*time.Millisecond)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *fronted) deleteExchange(destination string) error {
	return onChannel(f.uri, func(channel *amqp091.Channel) error { return channel.ExchangeDelete(destination, false, false) })
}

// deleteQueue does so when nothing is in it that would be lost with it. It is unbound
// before: what is on its way to a queue that is deleted is confirmed by RabbitMQ, and gone
// as if it had been there already.
func (f *fronted) deleteQueue(ctx context.Context, destination string) error {
	err := onChannel(f.uri, func(channel *amqp091.Channel) error {
		return channel.QueueUnbind(queueOf(destination), "", destination, nil)
	})
	if err != nil {
		return err
	}
	if err := pause(ctx, 500*time.Millisecond); err != nil { // until what was routed before is there
		return err
	}
	return await(ctx, "an empty queue "+destination, func() (bool, error) {
		err := onChannel(f.uri, func(channel *amqp091.Channel) error {
			_, err := channel.QueueDelete(queueOf(destination), false, true, false)
			return err
		})
		var refused *amqp091.Error
		if errors.As(err, &refused) && refused.Code == amqp091.PreconditionFailed {
			return false, nil
		}
		return err == nil, err
	})
}

// Deliveries implements ledger.Broker: once nothing is on its way any more.
func (f *fronted) Deliveries(ctx context.Context, destination string) ([]ledger.Delivery, error) {
	err := await(ctx, "an empty queue "+destination, func() (empty bool, err error) {
		err = onChannel(f.uri, func(channel *amqp091.Channel) error {
			queue, err := channel.QueueDeclarePassive(queueOf(destination), true, false, false, false, nil)
			empty = queue.Messages == 0
			return err
		})
		return empty, err
	})
	if err != nil {
		return nil, err
	}
	if err := f.movers[destination].stop(); err != nil { // with all that it has in hand
		return nil, err
	}
	return f.AMQP.Deliveries(ctx, behind(destination))
}

// Subscriber implements ledger.Broker.
func (f *fronted) Subscriber(group string) (message.Subscriber, error) {
	subscriber, err := f.rabbit.Subscriber(group)
	return subscriberBehind{subscriber}, err
}

type subscriberBehind struct{ message.Subscriber }

func (s subscriberBehind) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.Subscriber.Subscribe(ctx, behind(topic))
}

// Unhandled implements ledger.Broker.
func (f *fronted) Unhandled(ctx context.Context, group, destination string) (int64, error) {
	return f.AMQP.Unhandled(ctx, group, behind(destination))
}

func onChannel(uri string, do func(channel *amqp091.Channel) error) error {
	const patience = 2 * time.Second // with a broker, or a network, that does not answer
	connection, err := amqp091.DialConfig(uri, amqp091.Config{Dial: amqp091.DefaultDial(patience), Heartbeat: patience})
	if err != nil {
		return fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	return do(channel)
}

// mover takes messages from a queue to an exchange, in their order and each once, and
// waits for the queue where there is none.
type mover struct {
	cancel context.CancelFunc
	once   sync.Once
	done   chan error
	err    error
}

// startMover starts one that is to be stopped, whatever becomes of ctx.
func startMover(ctx context.Context, uri, queue, exchange string) *mover {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &mover{cancel: cancel, done: make(chan error, 1)}
	go func() { m.done <- moveUntil(ctx, uri, queue, exchange) }()
	return m
}

func (m *mover) stop() error {
	m.once.Do(func() {
		m.cancel()
		m.err = <-m.done
	})
	return m.err
}

func moveUntil(ctx context.Context, uri, queue, exchange string) error {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return fmt.Errorf("mover: %w", err)
	}
	defer connection.Close()
	out, err := connection.Channel()
	if err != nil {
		return fmt.Errorf("mover: %w", err)
	}
	if err := out.Confirm(false); err != nil {
		return fmt.Errorf("mover: %w", err)
	}
	for ctx.Err() == nil {
		in, err := connection.Channel()
		if err != nil {
			return fmt.Errorf("mover: %w", err)
		}
		const consumer = "mover"
		const autoAck = true // an ack for a queue that is gone would end the channel, and what it has in hand
		deliveries, err := in.Consume(queue, consumer, autoAck, false, false, false, nil)
		if err != nil { // there is no queue
			_ = pause(ctx, 10*time.Millisecond)
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = in.Cancel(consumer, false) })
		err = moveAll(deliveries, out, exchange)
		stop()
		if err := errors.Join(err, in.Close()); err != nil {
			return fmt.Errorf("mover: %w", err)
		}
	}
	return nil
}

// moveAll ends with the queue, or with the consumer, when all that they gave is moved.
func moveAll(deliveries <-chan amqp091.Delivery, out *amqp091.Channel, exchange string) error {
	for d := range deliveries {
		if err := moveOne(d, out, exchange); err != nil {
			return err
		}
	}
	return nil
}

func moveOne(d amqp091.Delivery, out *amqp091.Channel, exchange string) error {
	confirm, err := out.PublishWithDeferredConfirm(exchange, "", false, false, amqp091.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, DeliveryMode: amqp091.Persistent, Body: d.Body,
	})
	if err != nil {
		return err
	}
	if !confirm.Wait() {
		return errors.New("not confirmed")
	}
	return nil
}

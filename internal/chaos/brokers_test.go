package chaos_test

import (
	"context"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

var (
	onKafka    = []variant{{kafka, 4, false}, {kafka, 1, true}}
	onRabbitMQ = []variant{{rabbitmq, 4, false}, {rabbitmq, 1, true}}
)

func brokerFaults() []scenario {
	return []scenario{
		{name: "RabbitMQ restarted", short: true, alone: true, variants: onRabbitMQ, prepare: atLeisure, faults: restarted("rabbitmq.sh")},
		{name: "RabbitMQ killed", thorough: true, alone: true, variants: onRabbitMQ, prepare: atLeisure, faults: killed("rabbitmq.sh")},
		{name: "Kafka restarted", alone: true, variants: onKafka, prepare: atLeisure, faults: restarted("kafka.sh")},
		{name: "Kafka killed", thorough: true, alone: true, variants: onKafka, prepare: atLeisure, faults: killed("kafka.sh")},
		{name: "RabbitMQ memory alarm", alone: true, variants: onRabbitMQ, prepare: atLeisure, faults: memoryAlarm},
		{name: "exchange deleted", variants: onRabbitMQ, prepare: frontAll, faults: deleted(func(_ context.Context, f *fronted, destination string) error {
			return f.deleteExchange(destination)
		})},
		{name: "queue deleted", short: true, variants: onRabbitMQ, prepare: frontAll, faults: deleted(func(ctx context.Context, f *fronted, destination string) error {
			return f.deleteQueue(ctx, destination)
		})},
	}
}

func restarted(script string) faultsFunc {
	return func(ctx context.Context, w *world, c *ledger.Control) error {
		return w.bounce(ctx, c, script, func() error { return w.servers.stop(ctx, script) })
	}
}

func killed(script string) faultsFunc {
	return func(ctx context.Context, w *world, c *ledger.Control) error {
		return w.bounce(ctx, c, script, func() error { return w.servers.kill(ctx, script) })
	}
}

// atLeisure is for what takes long: a backlog that nobody asks for takes longer still.
func atLeisure(w *world) { w.config.Pace = 100 * time.Millisecond }

// bounce ends a server under load, and starts it again. It returns when all is forwarded
// that was written until then.
func (w *world) bounce(ctx context.Context, c *ledger.Control, script string, end func() error) error {
	if err := c.Reach(ctx, 0.3); err != nil {
		return err
	}
	c.HitAll()
	if err := end(); err != nil {
		return err
	}
	if err := w.servers.start(ctx, script); err != nil {
		return err
	}
	return w.goesOn(ctx, c)
}

func memoryAlarm(ctx context.Context, w *world, c *ledger.Control) error {
	for _, share := range []float64{0.2, 0.6} {
		if err := c.Reach(ctx, share); err != nil {
			return err
		}
		c.HitAll()
		if err := w.servers.rabbitmqctl(ctx, "set_vm_memory_high_watermark", "0"); err != nil {
			return err
		}
		if err := pause(ctx, 3*time.Second); err != nil {
			return err
		}
		if err := w.servers.rabbitmqctl(ctx, "set_vm_memory_high_watermark", "absolute", "1GiB"); err != nil {
			return err
		}
		if err := c.AwaitForwarded(ctx); err != nil {
			return err
		}
	}
	return nil
}

// frontAll gives the run destinations whose exchanges and queues may be deleted.
func frontAll(w *world) { frontAllWith(w, nil) }

func frontAllWith(w *world, arguments amqp091.Table) {
	w.t.Helper()
	broker := newFronted(w.t, w.newAMQP(), w.servers.amqpURI())
	broker.arguments = arguments
	w.config.Broker = broker
	for i := range w.config.Destinations {
		w.config.Destinations[i] = broker.NewDestination(w.t)
	}
}

// deleted has something of two destinations deleted for a moment, one after the other.
// The others go on meanwhile.
func deleted(del func(ctx context.Context, f *fronted, destination string) error) faultsFunc {
	return func(ctx context.Context, w *world, c *ledger.Control) error {
		broker := w.config.Broker.(*fronted)
		for i, share := range []float64{0.2, 0.6} {
			if err := c.Reach(ctx, share); err != nil {
				return err
			}
			c.HitAll()
			if err := del(ctx, broker, w.config.Destinations[i]); err != nil {
				return err
			}
			if err := pause(ctx, 2*time.Second); err != nil {
				return err
			}
			if err := broker.declare(w.config.Destinations[i]); err != nil {
				return err
			}
			if err := c.AwaitForwarded(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

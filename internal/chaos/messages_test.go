package chaos_test

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/ledger"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

// messageFaults: one message in a thousand cannot be delivered. It goes to the dead
// letters alone; those before and behind it in its unit, and all others, arrive.
func messageFaults() []scenario {
	return []scenario{
		{name: "metadata that only SQL can write", short: true, prepare: thousand, check: twoDead, faults: culprits(ledger.Extra{
			Metadata: map[string]string{"_watermill_message_uuid": "another"},
		}, 0)},
		{name: "2 MiB into a topic of 1 MiB", short: true, variants: onKafka, prepare: thousand, check: twoDead, faults: culprits(ledger.Extra{
			Size: 2 << 20,
		}, 0)},
		{name: "more than its topic takes, and the client does not know", variants: onKafka, prepare: smallTopics, check: twoDead, faults: amongMany(culprits(ledger.Extra{
			Size: 300 << 10,
		}, 0))},
		// RabbitMQ would close the connection over it.
		{name: "a header that is larger than a frame", variants: onRabbitMQ, prepare: thousand, check: twoDead, faults: culprits(ledger.Extra{
			Metadata: map[string]string{"large": strings.Repeat("x", 300<<10)},
		}, 0)},
		// It is found by halving a batch of 20, and has three attempts.
		{name: "a message that closes the connection", variants: onRabbitMQ, prepare: thousand, check: twoDead, faults: inspected(culprits(ledger.Extra{
			Metadata: map[string]string{"word": strings.Repeat(forbidden, 10)},
		}, 5+3))},
		{name: "a full queue that rejects", short: true, variants: []variant{{rabbitmq, 4, false}, {rabbitmq, 4, true}}, prepare: shortQueues, faults: fullQueue},
	}
}

const forbidden = "what no firewall lets pass"

// inspected has something between forwarders and broker end each connection on which it
// sees the forbidden words.
func inspected(faults faultsFunc) faultsFunc {
	return func(ctx context.Context, w *world, c *ledger.Control) error {
		mend, err := w.proxies.add(w.pair(forwarderKafka), toxic{inspecting, up, map[string]any{"words": forbidden}})
		if err != nil {
			return err
		}
		err = faults(ctx, w, c)
		if err == nil {
			err = c.AwaitForwarded(ctx)
		}
		return errors.Join(err, mend(ctx))
	}
}

// thousand healthy events at least: a transaction has two on average.
func thousand(w *world) {
	w.config.Transactions = 600
	w.config.Forwarder.MaxAttempts = 3
	patientPublisher(w)
}

// smallTopics refuse what the publisher does not. The keys are enough for several in each
// partition at a time: a broker refuses all that the client has put together for one.
func smallTopics(w *world) {
	w.t.Helper()
	thousand(w)
	w.config.Destinations = []string{testkafka.NewTopic(w.t, ledger.KafkaPartitions, "max.message.bytes", "100000")}
	w.config.Keys = 40
}

// amongMany has batches be large, by a broker that takes its time.
func amongMany(faults faultsFunc) faultsFunc {
	return func(ctx context.Context, w *world, c *ledger.Control) error {
		mend, err := w.proxies.add(w.pair(forwarderKafka), toxic{"latency", down, map[string]any{"latency": 100}})
		if err != nil {
			return err
		}
		return errors.Join(faults(ctx, w, c), mend(ctx))
	}
}

// culprits writes two, to different destinations, each in the middle of ten others of its
// key. Each may cost a process so many times what is on its way.
func culprits(culprit ledger.Extra, hits int) faultsFunc {
	return func(ctx context.Context, _ *world, c *ledger.Control) error {
		for aggregate, share := range []float64{0.2, 0.6} {
			if err := c.Reach(ctx, share); err != nil {
				return err
			}
			c.Hit(hits)
			for _, events := range [][]ledger.Extra{make([]ledger.Extra, 5), {culprit}, make([]ledger.Extra, 5)} {
				if err := c.Write(ctx, aggregate, events...); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

func twoDead(w *world, r ledger.Report) {
	w.t.Helper()
	require.Equal(w.t, 2, r.DeadLetters)
	require.Equal(w.t, r.Committed-2, r.Deliveries-r.Duplicates)
	require.Greater(w.t, r.Committed, 1000)
}

// shortQueues take ten messages, and reject more. That is no fault of a message.
func shortQueues(w *world) {
	w.t.Helper()
	patientPublisher(w)
	frontAllWith(w, amqp091.Table{"x-max-length": 10, "x-overflow": "reject-publish"})
}

// fullQueue: nobody reads one of the queues for a while, and then too slowly, so that of
// the messages of a moment some are rejected and others taken.
func fullQueue(ctx context.Context, w *world, c *ledger.Control) error {
	if err := c.Reach(ctx, 0.3); err != nil {
		return err
	}
	broker, destination := w.config.Broker.(*fronted), w.config.Destinations[0]
	if err := broker.pause(destination); err != nil {
		return err
	}
	defer broker.resume(ctx, destination)
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	return broker.moveSlowly(ctx, destination, 4*time.Second)
}

func noneDead(w *world, r ledger.Report) {
	w.t.Helper()
	require.Zero(w.t, r.DeadLetters)
}

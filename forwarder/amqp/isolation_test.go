package amqp_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// poisonous is a Config that makes RabbitMQ close the channel over the message "poison":
// it insists on the user-id of who publishes.
func poisonous() amqp.Config {
	cfg := queues()
	cfg.AMQP.Marshaler = wmamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
		if p.Headers["_watermill_message_uuid"] == "poison" {
			p.UserId = "someone"
		}
		return p
	}}
	return cfg
}

// A message over which the broker closes the channel: it alone is refused and spends
// attempts, the others of its destination go on.
func TestMessageThatTheBrokerRefusesFailsAlone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	queue := testamqp.NewQueue(t, nil)
	insert(t, db, queue, "", "poison")
	for _, id := range ids("m", 20) {
		insert(t, db, queue, "", id)
	}
	runForwarder(t, db, newPublisher(t, poisonous()))
	require.ElementsMatch(t, ids("m", 20), takeIDs(t, queue, 20))
	require.Eventually(t, func() bool {
		return outboxRows(t, db, `id = 'poison' AND attempts > 2 AND last_error LIKE '%PRECONDITION_FAILED%'`) == 1
	}, patience, 5*time.Millisecond)
	require.Eventually(t, func() bool { return outboxRows(t, db, `id <> 'poison'`) == 0 }, patience, 5*time.Millisecond)
}

func TestRefusedMessageIsFoundInItsWave(t *testing.T) {
	t.Parallel()
	queue := testamqp.NewQueue(t, nil)
	msgs := []forwarder.Outgoing{
		outgoing(queue, "a", "1", "x"), outgoing(queue, "b", "poison", "x"), outgoing(queue, "c", "3", "x"), outgoing(queue, "b", "4", "x"),
	}
	results := publish(t, newPublisher(t, poisonous()), msgs...)
	require.NoError(t, results[0])
	require.ErrorIs(t, results[1], forwarder.ErrRefused)
	require.NotErrorIs(t, results[1], forwarder.ErrDestinationUnavailable)
	require.NoError(t, results[2])
	require.ErrorIs(t, results[3], forwarder.ErrKeyHeld)
	// RabbitMQ may have taken a message whose confirmation the closing channel did not bring:
	// it is sent again.
	got := takeIDs(t, queue, testamqp.Length(t, queue))
	slices.Sort(got)
	require.Equal(t, []string{"1", "3"}, slices.Compact(got))
}

// What would end the connection for all is found before it is sent.
func TestMessageThatWouldEndTheConnectionFailsAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(amqp091.Publishing) amqp091.Publishing{
		"long correlation id": func(p amqp091.Publishing) amqp091.Publishing {
			p.CorrelationId = strings.Repeat("c", 300)
			return p
		},
		"large bytes in a header": func(p amqp091.Publishing) amqp091.Publishing {
			p.Headers["large"] = []any{amqp091.Table{"b": make([]byte, 200_000)}}
			return p
		},
		"transient": func(p amqp091.Publishing) amqp091.Publishing {
			p.DeliveryMode = amqp091.Transient
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := testamqp.NewQueue(t, nil)
			cfg := queues()
			cfg.AMQP.Marshaler = wmamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
				if p.Headers["_watermill_message_uuid"] == "bad" {
					return spoil(p)
				}
				return p
			}}
			results := publish(t, newPublisher(t, cfg), outgoing(queue, "a", "bad", "x"), outgoing(queue, "b", "good", "x"))
			require.ErrorIs(t, results[0], forwarder.ErrRefused)
			require.NoError(t, results[1])
			require.Equal(t, []string{"good"}, takeIDs(t, queue, 1))
		})
	}
}

func TestDestinationWithATooLongNameFailsAlone(t *testing.T) {
	t.Parallel()
	good := testamqp.Name(t)
	testamqp.DeleteQueueAfter(t, good+"_service")
	testamqp.DeleteExchangeAfter(t, good)
	cfg := amqp.NewPubSubConfig(testamqp.URI())
	cfg.DeclareQueues = true
	cfg.AMQP.Queue.GenerateName = wmamqp.GenerateQueueNameTopicNameWithSuffix("service")
	results := publish(t, newPublisher(t, cfg), outgoing(strings.Repeat("x", 250), "a", "1", "x"), outgoing(good, "a", "2", "x"))
	require.ErrorIs(t, results[0], forwarder.ErrDestinationUnavailable)
	require.ErrorContains(t, results[0], "has 258 bytes")
	require.NoError(t, results[1])
}

// A panic in what the user configures is that destination's trouble.
func TestPanicInTheConfigurationFailsAlone(t *testing.T) {
	t.Parallel()
	queue := testamqp.NewQueue(t, nil)
	for name, spoil := range map[string]func(cfg *amqp.Config, bad string){
		"name": func(cfg *amqp.Config, bad string) {
			cfg.AMQP.Publish.GenerateRoutingKey = func(topic string) string {
				if topic == bad {
					panic("test: panic")
				}
				return topic
			}
		},
		"topology": func(cfg *amqp.Config, bad string) {
			cfg.DeclareQueues = true
			cfg.AMQP.TopologyBuilder = &panicking{bad: bad}
		},
	} {
		cfg := queues()
		spoil(&cfg, "bad")
		results := publish(t, newPublisher(t, cfg), outgoing("bad", "a", "1", "x"), outgoing(queue, "a", "2", "x"))
		require.ErrorContains(t, results[0], "test: panic", name)
		require.NoError(t, results[1], name)
	}
}

type panicking struct {
	wmamqp.DefaultTopologyBuilder

	bad string
}

func (p *panicking) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, cfg wmamqp.Config, logger watermill.LoggerAdapter,
) error {
	if queue == p.bad {
		panic("test: panic")
	}
	return p.DefaultTopologyBuilder.BuildTopology(channel, queue, exchange, cfg, logger)
}

// The limits of a connection are not those of the outbox: more destinations than
// channels, and frames as small as RabbitMQ has them.
func TestSmallConnectionServesManyDestinations(t *testing.T) {
	t.Parallel()
	for _, channels := range []uint16{1, 5} {
		t.Run(fmt.Sprint(channels), func(t *testing.T) {
			t.Parallel()
			cfg := queues()
			cfg.AMQP.Connection.AmqpConfig = &amqp091.Config{ChannelMax: channels, FrameSize: 4096}
			publisher := newPublisher(t, cfg)
			var msgs []forwarder.Outgoing
			for range 12 {
				queue := testamqp.NewQueue(t, nil)
				msgs = append(msgs, outgoing(queue, "a", "1", "x"), outgoing(queue, "b", "2", "x"))
			}
			for range 3 {
				for _, err := range publish(t, publisher, msgs...) {
					require.NoError(t, err)
				}
			}
		})
	}
}

// One caller's cancelled context is no concern of the others.
func TestCancelledPublishLeavesBatchesAlone(t *testing.T) {
	t.Parallel()
	queue := testamqp.NewQueue(t, nil)
	publisher := newPublisher(t, queues())
	var others sync.WaitGroup
	for n := range 4 {
		others.Go(func() {
			for i := range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Duration(i%10)*200*time.Microsecond, cancel)
				msg := message.NewMessage("cancelled", nil)
				msg.SetContext(ctx)
				_ = publisher.Publish(fmt.Sprintf("test-nowhere-%d-%d", n, i), msg) // it has no queue
			}
		})
	}
	for i := range 100 {
		results := publish(t, publisher, outgoing(queue, "a", fmt.Sprint(i), "x"), outgoing(queue, "b", fmt.Sprint(i), "x"))
		require.NoError(t, results[0])
		require.NoError(t, results[1])
	}
	others.Wait()
}

// The client library's own recovery would bring channels back under a wave that is given
// up; it stays off.
func TestRecoveryOfTheClientLibraryStaysOff(t *testing.T) {
	t.Parallel()
	queue := testamqp.NewQueue(t, nil)
	p := &proxy{}
	t.Cleanup(p.cut)
	cfg := queues()
	cfg.AMQP.Connection.AmqpConfig = &amqp091.Config{Dial: p.dial, Recovery: &amqp091.Recovery{}}
	publisher := newPublisher(t, cfg)
	require.NoError(t, publish(t, publisher, outgoing(queue, "a", "1", "x"))[0])
	p.mu.Lock()
	p.silent = true
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, publisher.PublishBatch(ctx, []forwarder.Outgoing{outgoing(queue, "a", "2", "x")})[0], forwarder.ErrUnavailable)
	p.cut()
	require.NoError(t, publish(t, publisher, outgoing(queue, "a", "2", "x"))[0])
}

package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testkafka"
	"github.com/watermill-outbox/outbox/middleware"
)

// poisonTopic is a place for poisoned messages, behind a publisher that honours a
// message's context.
type poisonTopic struct {
	publisher message.Publisher
	topic     string
	// take waits for the one message that is there, and returns its UUID and the reason.
	take func(t *testing.T) (id, reason string)
}

var poisonTopics = map[string]func(t *testing.T, b *testBundle) poisonTopic{
	"Kafka": func(t *testing.T, _ *testBundle) poisonTopic {
		t.Helper()
		publisher, err := kafka.NewPublisher(kafka.Config{Brokers: testkafka.Brokers()}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, publisher.Close()) })
		topic := testkafka.NewTopic(t, 1)
		return poisonTopic{publisher: publisher, topic: topic, take: func(t *testing.T) (id, reason string) {
			t.Helper()
			record := testkafka.NewConsumer(t, topic).Take(t, 1)[0]
			for _, header := range record.Headers {
				if header.Key == wm.ReasonForPoisonedKey {
					reason = string(header.Value)
				}
			}
			return string(record.Key), reason
		}}
	},
	"RabbitMQ": func(t *testing.T, _ *testBundle) poisonTopic {
		t.Helper()
		cfg := amqp.NewQueueConfig(testamqp.URI())
		cfg.DeclareQueues = false
		publisher, err := amqp.NewPublisher(cfg, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, publisher.Close()) })
		queue := testamqp.NewQueue(t, nil)
		return poisonTopic{publisher: publisher, topic: queue, take: func(t *testing.T) (id, reason string) {
			t.Helper()
			delivery := testamqp.Take(t, queue, 1)[0]
			require.Zero(t, testamqp.Length(t, queue))
			reason, _ = delivery.Headers[wm.ReasonForPoisonedKey].(string)
			return delivery.MessageId, reason
		}}
	},
	"a transaction of its own": func(_ *testing.T, b *testBundle) poisonTopic {
		return poisonTopic{publisher: ownTransaction{b}, topic: "poison", take: func(t *testing.T) (id, reason string) {
			t.Helper()
			err := b.db.QueryRowContext(t.Context(), `SELECT min(id), min(metadata ->> $1) FROM `+b.db.Schema.Outbox()+`
				HAVING count(*) = 1`, wm.ReasonForPoisonedKey).Scan(&id, &reason)
			require.NoError(t, err)
			return id, reason
		}}
	},
}

func permanentOrOverrun(err error) bool {
	return middleware.IsPermanent(err) || errors.Is(err, context.DeadlineExceeded)
}

func refuse(*message.Message) error { return fmt.Errorf("%w: %w", middleware.ErrPermanent, errHandler) }

func overrun(msg *message.Message) error { <-msg.Context().Done(); return nil }

// A message that is poisoned after its context has ended is put aside, once, and nothing
// is left of it elsewhere.
func TestPoisonPublisher_AfterTheMessagesContextEnded(t *testing.T) {
	t.Parallel()
	const short = 100 * time.Millisecond
	for name, test := range map[string]struct {
		handle func(msg *message.Message) error
		// middlewares stand around the decorated handler.
		middlewares func(t *testing.T, p poisonTopic) []message.HandlerMiddleware
		inside      message.HandlerMiddleware // between the inbox and the handler
		reason      error
	}{
		// The Timeout cancels its context when the handler returns.
		"in time, and refused for good": {
			handle: refuse, reason: errHandler,
			middlewares: func(t *testing.T, p poisonTopic) []message.HandlerMiddleware {
				t.Helper()
				return []message.HandlerMiddleware{
					poisonQueue(t, p.publisher, p.topic, middleware.IsPermanent), retry(1), wm.Recoverer, wm.Timeout(wait),
				}
			},
		},
		"a Timeout of each attempt": {
			handle: overrun, reason: context.DeadlineExceeded,
			middlewares: func(t *testing.T, p poisonTopic) []message.HandlerMiddleware {
				t.Helper()
				return []message.HandlerMiddleware{
					poisonQueue(t, p.publisher, p.topic, permanentOrOverrun), retry(1), wm.Recoverer, wm.Timeout(short),
				}
			},
		},
		"a Timeout around everything": {
			handle: overrun, reason: context.DeadlineExceeded,
			middlewares: func(t *testing.T, p poisonTopic) []message.HandlerMiddleware {
				t.Helper()
				return []message.HandlerMiddleware{
					wm.Timeout(short), poisonQueue(t, p.publisher, p.topic, permanentOrOverrun), retry(1), wm.Recoverer,
				}
			},
		},
		"a Timeout inside the inbox": {
			handle: overrun, reason: context.DeadlineExceeded,
			middlewares: func(t *testing.T, p poisonTopic) []message.HandlerMiddleware {
				t.Helper()
				return []message.HandlerMiddleware{
					poisonQueue(t, p.publisher, p.topic, permanentOrOverrun), retry(1), wm.Recoverer,
				}
			},
			inside: wm.Timeout(short),
		},
		"a PoisonQueue without a filter": {
			handle: overrun, reason: context.DeadlineExceeded,
			middlewares: func(t *testing.T, p poisonTopic) []message.HandlerMiddleware {
				t.Helper()
				all, err := wm.PoisonQueue(p.publisher, p.topic)
				require.NoError(t, err)
				return []message.HandlerMiddleware{all, wm.Timeout(short)}
			},
		},
	} {
		for topicName, newTopic := range poisonTopics {
			t.Run(name+"/"+topicName, func(t *testing.T) {
				t.Parallel()
				b := setup(t, native)
				p := newTopic(t, b)
				take := p.take
				p.publisher = middleware.PoisonPublisher(p.publisher, 0)
				handler := b.then(func(msg *message.Message) ([]*message.Message, error) { return nil, test.handle(msg) })
				if test.inside != nil {
					handler = test.inside(handler)
				}
				errs := route{}.deliver(t, b.wrap(t, handler), test.middlewares(t, p), newMessage("poisoned"))
				require.NoError(t, errs[0], "it is acked")
				id, reason := take(t)
				require.Equal(t, "poisoned", id)
				require.Contains(t, reason, test.reason.Error())
				require.Zero(t, b.found(t, "poisoned").keys)
				require.Zero(t, b.found(t, "poisoned").effects)
			})
		}
	}
}

// What PoisonPublisher is for: under the context that a Timeout leaves, no publisher that
// honours it takes the message, and the broker delivers it again for ever.
func TestPoisonPublisher_IsNeeded(t *testing.T) {
	t.Parallel()
	for name, newTopic := range poisonTopics {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, native)
			p := newTopic(t, b)
			pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
			router := message.NewDefaultRouter(nil)
			deliveries := make(chan error, 10)
			queue := poisonQueue(t, p.publisher, p.topic, middleware.IsPermanent)
			router.AddMiddleware(observe(deliveries), queue, retry(1), wm.Recoverer, wm.Timeout(wait))
			router.AddConsumerHandler("payments", "orders", pubSub, b.inbox(t).NoPublish(refuse))
			stop := start(t, router)
			defer stop()
			require.NoError(t, pubSub.Publish("orders", newMessage("poisoned")))
			for range 2 {
				require.ErrorIs(t, receive(t, deliveries), context.Canceled)
			}
		})
	}
}

// recording keeps what it is given.
type recording struct {
	ctx  []context.Context
	msgs []*message.Message
	err  error
}

func (r *recording) Publish(_ string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		r.msgs = append(r.msgs, msg)
		r.ctx = append(r.ctx, msg.Context())
	}
	return r.err
}

func (r *recording) Close() error { return r.err }

func TestPoisonPublisher_Context(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), contextKey{}, "value"))
	cancel()
	msg := message.NewMessageWithContext(ctx, "1", []byte("payload"))
	msg.Metadata.Set("key", "value")
	var inner recording
	publisher := middleware.PoisonPublisher(&inner, time.Hour)
	require.NoError(t, publisher.Publish("poison", msg, newMessage("2")))

	require.Len(t, inner.msgs, 2)
	require.True(t, msg.Equals(inner.msgs[0]))
	require.NotSame(t, msg, inner.msgs[0])
	require.Equal(t, ctx, msg.Context(), "the message's own context is left alone")
	deadline, ok := inner.ctx[0].Deadline()
	require.True(t, ok, "the wait is bounded")
	require.Greater(t, time.Until(deadline), 50*time.Minute)
	require.Equal(t, "value", inner.ctx[0].Value(contextKey{}))

	inner.err = errHandler
	require.ErrorIs(t, publisher.Publish("poison", msg), errHandler)
	require.ErrorIs(t, publisher.Close(), errHandler)
	require.NoError(t, publisher.Publish("poison"))
}

// A handler that mixes up the arguments of message.NewMessage returns a payload for an
// event id. The error that refuses it does not carry it along, into logs and the poisoned
// message, where RabbitMQ has no room for it.
func TestPoisonPublisher_PayloadForAnEventID(t *testing.T) {
	t.Parallel()
	payload := `{"name":"` + strings.Repeat("x", 200<<10) + `"}`
	for name, newTopic := range poisonTopics {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, native)
			p := newTopic(t, b)
			r := route{publish: "payments", publisher: b.config.Outbox}
			errs := r.deliver(t, b.wrap(t, b.then(returning(message.NewMessage(payload, nil)))), []message.HandlerMiddleware{
				poisonQueue(t, middleware.PoisonPublisher(p.publisher, 0), p.topic, middleware.IsPermanent),
			}, newMessage("1"))
			require.NoError(t, errs[0], "it is acked")
			id, reason := p.take(t)
			require.Equal(t, "1", id)
			require.Contains(t, reason, outbox.ErrInvalidMessage.Error())
			require.Less(t, len(reason), 1000)
		})
	}
}

// Nor does an error of the handler's own that quotes what it cannot read keep the message
// from being put aside.
func TestPoisonPublisher_ReasonThatQuotesAPayload(t *testing.T) {
	t.Parallel()
	payload := "\x00\xff" + strings.Repeat("é", 100<<10) + "\x00"
	for name, newTopic := range poisonTopics {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, native)
			p := newTopic(t, b)
			handler := b.wrap(t, b.then(func(*message.Message) ([]*message.Message, error) {
				return nil, fmt.Errorf("%w: cannot read %s", middleware.ErrPermanent, payload)
			}))
			errs := route{}.deliver(t, handler, []message.HandlerMiddleware{
				poisonQueue(t, middleware.PoisonPublisher(p.publisher, 0), p.topic, middleware.IsPermanent),
			}, newMessage("1"))
			require.NoError(t, errs[0], "it is acked")
			id, reason := p.take(t)
			require.Equal(t, "1", id)
			require.Contains(t, reason, "middleware: permanent: cannot read \uFFFD\uFFFDé")
			require.True(t, strings.HasSuffix(reason, "…"))
			require.True(t, utf8.ValidString(reason))
			require.LessOrEqual(t, len(reason), 4<<10)
		})
	}
}

package amqp_test

import (
	"crypto/tls"
	"testing"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder/amqp"
)

func TestConfigsThatCouldLoseMessagesAreRefused(t *testing.T) {
	t.Parallel()
	const uri = "amqp://127.0.0.1/"
	for text, spoil := range map[string]func(*amqp.Config){
		"ConfirmDelivery is false":                 func(c *amqp.Config) { c.AMQP.Publish.ConfirmDelivery = false },
		"Transactional is true":                    func(c *amqp.Config) { c.AMQP.Publish.Transactional = true },
		"Immediate is true":                        func(c *amqp.Config) { c.AMQP.Publish.Immediate = true },
		"messages are not persistent":              func(c *amqp.Config) { c.AMQP.Marshaler = wmamqp.DefaultMarshaler{NotPersistentDeliveryMode: true} },
		"AMQP.Queue.Durable is false":              func(c *amqp.Config) { c.AMQP.Queue.Durable = false },
		"Queue is Exclusive or AutoDelete":         func(c *amqp.Config) { c.AMQP.Queue.Exclusive = true },
		"Queue is Exclusive or Auto":               func(c *amqp.Config) { c.AMQP.Queue.AutoDelete = true },
		"AMQP.QueueBind.GenerateRoutingKey is nil": func(c *amqp.Config) { c.AMQP.QueueBind.GenerateRoutingKey = nil },
		"it would be in plain text":                func(c *amqp.Config) { c.AMQP.Connection.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13} },
		"AMQP.Queue.GenerateName is nil":           func(c *amqp.Config) { c.AMQP.Queue.GenerateName = nil },
		"AMQP.TopologyBuilder is nil":              func(c *amqp.Config) { c.AMQP.TopologyBuilder = nil },
		"empty Config.AmqpURI":                     func(c *amqp.Config) { c.AMQP.Connection.AmqpURI = "" },
		"AmqpURI: it is not an AMQP URI":           func(c *amqp.Config) { c.AMQP.Connection.AmqpURI = "http://127.0.0.1" },
		"missing Config.Marshaler":                 func(c *amqp.Config) { c.AMQP.Marshaler = nil },
		"TLSConfig and AMQP.Connection.AmqpConf":   bothTLS,
		"RoutingKeyMetadata or ExchangeMetadata":   func(c *amqp.Config) { c.RoutingKeyMetadata = "key" },
		"RoutingKeyMetadata or Exchange":           func(c *amqp.Config) { c.ExchangeMetadata = "exchange" },
		"DeclareQueues and ExistingExchanges":      func(c *amqp.Config) { c.ExistingExchanges = true },
	} {
		cfg := amqp.NewQueueConfig(uri)
		require.NoError(t, cfg.Validate())
		spoil(&cfg)
		_, err := amqp.NewPublisher(cfg, nil)
		require.ErrorIs(t, err, amqp.ErrInvalidConfig)
		require.ErrorContains(t, err, text)
	}
	for _, cfg := range []amqp.Config{
		amqp.NewPubSubConfig(uri), amqp.NewTopicConfig(uri, ""), amqp.NewTopicConfig(uri, "events"), amqp.NewDirectConfig(uri, "events"),
	} {
		require.NoError(t, cfg.Validate())
	}
	for _, leaky := range []string{"amqp://user:se/cret@host/", "amqp://user:sec%ret@host/", "amqp://user:se cret@host/"} {
		err := amqp.NewQueueConfig(leaky).Validate()
		require.ErrorIs(t, err, amqp.ErrInvalidConfig)
		require.NotContains(t, err.Error(), "se")
	}
	err := amqp.Config{AMQP: wmamqp.NewNonDurableQueueConfig(uri), DeclareQueues: true}.Validate()
	require.ErrorContains(t, err, "ConfirmDelivery is false", "all at once")
	require.ErrorContains(t, err, "not persistent")
	require.ErrorContains(t, err, "Queue.Durable is false")
}

func bothTLS(c *amqp.Config) {
	c.AMQP.Connection.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13}
	c.AMQP.Connection.AmqpConfig = &amqp091.Config{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
}

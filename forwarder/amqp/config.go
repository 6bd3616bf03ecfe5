package amqp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// ErrInvalidConfig says that a Config cannot work, or could lose messages; the error
// that wraps it names the field and what is needed.
var ErrInvalidConfig = errors.New("amqp: invalid config")

// Config configures a Publisher. NewQueueConfig and NewPubSubConfig make one that
// works.
type Config struct {
	// AMQP is watermill-amqp's own Config: names of exchanges and routing keys,
	// connection, TLS, marshaler and topology. It must ask for what a forwarder
	// promises: Publish.ConfirmDelivery, and persistent messages. Mandatory is always on.
	// Publish.ChannelPoolSize, Connection.Reconnect and Connection.AmqpConfig.Recovery have
	// no meaning here: channels are opened as needed, and the forwarder's own backoff says
	// when to connect again.
	AMQP amqp.Config
	// DeclareQueues makes the publisher declare and bind the queue of
	// AMQP.Queue.GenerateName, as the subscriber would, so that messages published before
	// the first consumer came have a place to wait. Default: only the exchange is
	// declared, and messages that no queue takes wait in the outbox.
	DeclareQueues bool
	// RoutingKeyMetadata is the metadata key under which a message carries its routing
	// key, in place of what AMQP.Publish.GenerateRoutingKey makes of the destination. On
	// the default exchange a routing key is a queue's name. A message without it, or that no
	// queue takes, is refused and holds back its own unit only. Default: none.
	RoutingKeyMetadata string
	// ExchangeMetadata is the metadata key under which a message carries the name of its
	// exchange, in place of what AMQP.Exchange.GenerateName makes of the destination. That
	// exchange must exist. A message without it, or whose exchange does not exist, is
	// refused and holds back its own unit only. Default: none.
	ExchangeMetadata string
	// ExistingExchanges keeps the publisher from declaring exchanges, for which RabbitMQ
	// asks the permission to configure even where they exist: they must exist. Default:
	// exchanges are declared.
	ExistingExchanges bool
}

// NewQueueConfig returns a Config for durable queues: the destination is the queue's
// name. It is watermill-amqp's NewDurableQueueConfig with confirms and Marshaler.
//
// For quorum queues, which keep copies on several nodes of a cluster, set the arguments;
// subscribers need the same:
//
//	config := amqp.NewQueueConfig(uri)
//	config.AMQP.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
func NewQueueConfig(uri string) Config {
	return confirmed(Config{AMQP: amqp.NewDurableQueueConfig(uri), DeclareQueues: true})
}

// NewPubSubConfig returns a Config for durable fanout exchanges: the destination is the
// exchange's name, and each consumer has a queue of its own. It is watermill-amqp's
// NewDurablePubSubConfig with confirms and Marshaler.
func NewPubSubConfig(uri string) Config {
	return confirmed(Config{AMQP: amqp.NewDurablePubSubConfig(uri, nil)})
}

// NewTopicConfig returns a Config for durable topic exchanges: consumers bind their
// queues by patterns of routing keys. With an exchange, everything goes there, and the
// destination is the routing key. Without one (""), the destination is the exchange, and
// each message carries its routing key in the metadata DefaultRoutingKeyMetadata.
func NewTopicConfig(uri, exchange string) Config { return newExchangeConfig(uri, exchange, "topic") }

// NewDirectConfig is NewTopicConfig for direct exchanges: consumers bind their queues by
// routing keys as they are.
func NewDirectConfig(uri, exchange string) Config { return newExchangeConfig(uri, exchange, "direct") }

func newExchangeConfig(uri, exchange, exchangeType string) Config {
	config := NewPubSubConfig(uri)
	config.AMQP.Exchange.Type = exchangeType
	if exchange == "" {
		config.RoutingKeyMetadata = DefaultRoutingKeyMetadata
		return config
	}
	config.AMQP.Exchange.GenerateName = func(string) string { return exchange }
	config.AMQP.Publish.GenerateRoutingKey = func(destination string) string { return destination }
	return config
}

func confirmed(config Config) Config {
	config.AMQP.Publish.ConfirmDelivery = true
	config.AMQP.Marshaler = Marshaler{}
	return config
}

// Validate reports everything that cannot work or could lose messages, all at once.
// The error wraps ErrInvalidConfig.
func (c Config) Validate() error {
	found := slices.Concat(c.unusable(), c.undeclarable(), c.unsafe())
	for i, err := range found {
		found[i] = fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return errors.Join(found...)
}

// unusable lists what cannot work.
func (c Config) unusable() (errs []error) {
	if err := c.AMQP.ValidatePublisher(); err != nil {
		errs = append(errs, fmt.Errorf("AMQP: %w", err))
	}
	if err := checkURI(c.AMQP.Connection.AmqpURI); err != nil {
		errs = append(errs, fmt.Errorf("AMQP.Connection.AmqpURI: %w", err))
	}
	if c.AMQP.TopologyBuilder == nil {
		errs = append(errs, errors.New("AMQP.TopologyBuilder is nil: use watermill-amqp's DefaultTopologyBuilder"))
	}
	if c.AMQP.Publish.Immediate {
		errs = append(errs, errors.New("AMQP.Publish.Immediate is true: RabbitMQ does not have it, set it to false"))
	}
	connection := c.AMQP.Connection
	if connection.TLSConfig != nil && !strings.HasPrefix(connection.AmqpURI, "amqps:") {
		errs = append(errs, errors.New("AMQP.Connection.TLSConfig is set, but AmqpURI is not amqps: it would be in plain text"))
	}
	if connection.TLSConfig != nil && connection.AmqpConfig != nil && connection.AmqpConfig.TLSClientConfig != nil {
		errs = append(errs, errors.New("AMQP.Connection.TLSConfig and AMQP.Connection.AmqpConfig.TLSClientConfig are both set"))
	}
	return errs
}

// undeclarable lists why no queues can be declared, where they should be.
func (c Config) undeclarable() (errs []error) {
	if !c.DeclareQueues {
		return nil
	}
	if c.AMQP.Queue.GenerateName == nil {
		errs = append(errs, errors.New("DeclareQueues is true, but AMQP.Queue.GenerateName is nil"))
	}
	if c.AMQP.QueueBind.GenerateRoutingKey == nil {
		errs = append(errs, errors.New("DeclareQueues is true, but AMQP.QueueBind.GenerateRoutingKey is nil"))
	}
	if c.RoutingKeyMetadata != "" || c.ExchangeMetadata != "" {
		errs = append(errs, errors.New("DeclareQueues is true, but RoutingKeyMetadata or ExchangeMetadata is set: "+
			"the destination does not tell which queue it is"))
	}
	if c.ExistingExchanges {
		errs = append(errs, errors.New("DeclareQueues and ExistingExchanges are both true: a queue is declared with its exchange"))
	}
	return errs
}

// unsafe lists what could lose messages.
func (c Config) unsafe() (errs []error) {
	if !c.AMQP.Publish.ConfirmDelivery {
		errs = append(errs, errors.New("AMQP.Publish.ConfirmDelivery is false: without confirms messages are lost, set it to true"))
	}
	if c.AMQP.Publish.Transactional {
		errs = append(errs, errors.New("AMQP.Publish.Transactional is true: confirms do its work, set it to false"))
	}
	if c.DeclareQueues && !c.AMQP.Queue.Durable {
		errs = append(errs, errors.New("DeclareQueues is true, but AMQP.Queue.Durable is false: its messages would be lost in a restart"))
	}
	if c.DeclareQueues && (c.AMQP.Queue.Exclusive || c.AMQP.Queue.AutoDelete) {
		errs = append(errs, errors.New("DeclareQueues is true, but AMQP.Queue is Exclusive or AutoDelete: messages would be lost with it"))
	}
	if c.DeclareQueues {
		for _, err := range losesMessages(c.AMQP.Queue.Arguments) {
			errs = append(errs, fmt.Errorf("DeclareQueues is true, and AMQP.Queue.Arguments holds %w", err))
		}
	}
	if c.AMQP.Marshaler == nil {
		return errs // ValidatePublisher says so
	}
	if publishing, err := c.AMQP.Marshaler.Marshal(message.NewMessage("probe", nil)); err == nil {
		if err := requirePersistent(publishing); err != nil {
			errs = append(errs, fmt.Errorf("AMQP.Marshaler: %w", err))
		}
	}
	return errs
}

var errURI = errors.New("it is not an AMQP URI (amqp:// or amqps://); special characters of a password must be percent-encoded")

// checkURI does not repeat what it finds: the password may be part of it.
func checkURI(uri string) error {
	if uri == "" {
		return nil // ValidatePublisher says so
	}
	if _, err := amqp091.ParseURI(uri); err != nil {
		return errURI
	}
	return nil
}

var errTransient = errors.New("messages are not persistent: they would be lost in a restart")

func requirePersistent(publishing amqp091.Publishing) error {
	if publishing.DeliveryMode != amqp091.Persistent {
		return errTransient
	}
	return nil
}

package broker

import (
	"errors"

	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

// Kind names a broker.
type Kind string

const (
	// KindKafka is Apache Kafka: package forwarder/kafka.
	KindKafka Kind = "kafka"
	// KindAMQP is RabbitMQ: package forwarder/amqp.
	KindAMQP Kind = "amqp"
)

// Topology says what a destination is in RabbitMQ.
type Topology string

const (
	// TopologyQueue makes a destination a durable queue, which consumers share: as
	// watermill-amqp's NewDurableQueueConfig. Two services that consume from one queue
	// compete for its messages.
	TopologyQueue Topology = "queue"
	// TopologyPubSub makes a destination a durable fanout exchange, and each consumer has
	// a queue of its own, as Kafka's consumer groups have theirs: as watermill-amqp's
	// NewDurablePubSubConfig. Messages for an exchange without any queue wait in the outbox;
	// but a queue that is bound later than another gets only what is sent from then on.
	TopologyPubSub Topology = "pubsub"
	// TopologyTopic makes consumers bind their queues to a durable topic exchange, by
	// patterns of routing keys. Where AMQP.Exchange is set, all messages go to that one, and
	// a destination is a routing key. Where it is not, a destination is the exchange, and
	// each message carries its routing key as metadata: as amqp.NewTopicConfig.
	TopologyTopic Topology = "topic"
	// TopologyDirect is TopologyTopic for direct exchanges, where routing keys are matched
	// as they are: as amqp.NewDirectConfig.
	TopologyDirect Topology = "direct"
)

// QueueType is a kind of RabbitMQ's queues.
type QueueType string

const (
	// QueueTypeClassic is a queue on one node.
	QueueTypeClassic QueueType = "classic"
	// QueueTypeQuorum is a queue with copies on several nodes of a cluster. Its subscribers
	// need amqp.Marshaler, and "quorum" as their queue's argument x-queue-type.
	QueueTypeQuorum QueueType = "quorum"
)

// Config says which broker is used, and how to reach it. Both sections may be filled:
// the swap is a change of Kind. Or it names several brokers and says which destination
// goes where. The keys of YAML files are those of the tags.
type Config struct {
	// Kind is KindKafka or KindAMQP. It has no default. Leave it out where there are
	// Brokers.
	Kind Kind `koanf:"kind" yaml:"kind"`
	// Kafka is used where Kind is KindKafka.
	Kafka Kafka `koanf:"kafka" yaml:"kafka"`
	// AMQP is used where Kind is KindAMQP.
	AMQP AMQP `koanf:"amqp" yaml:"amqp"`

	// Brokers are several brokers by name (lower-case letters, digits and -), in place of
	// Kind, Kafka and AMQP.
	Brokers map[string]Named `koanf:"brokers" yaml:"brokers"`
	// Routes lead from destinations to Brokers, as "destination=broker". In a destination
	// each * stands for any characters or none. The first route that matches is taken. A
	// message for a destination without a route waits in the outbox: end with "*=broker"
	// to have none.
	Routes []string `koanf:"routes" yaml:"routes"`
	// Destinations are those that must have a route: list what the services publish to,
	// and one that was forgotten is an error at the start.
	Destinations []string `koanf:"destinations" yaml:"destinations"`
}

// Kafka is the plain data of kafka.Config.
type Kafka struct {
	// Brokers are the addresses (host:port) to find the cluster by. At least one.
	Brokers []string `koanf:"brokers" yaml:"brokers"`
	// ClientID names this client in the broker's logs and quotas. Default:
	// "watermill-outbox".
	ClientID string `koanf:"client_id" yaml:"client_id"`
	// Partitioner is kafka.Murmur2 or kafka.FNV1a. Changing it moves keys to other
	// partitions. Default: kafka.Murmur2.
	Partitioner kafka.Partitioner `koanf:"partitioner" yaml:"partitioner"`
	// Compression is kafka.NoCompression, Gzip, Snappy, LZ4 or Zstd. Default:
	// kafka.NoCompression.
	Compression kafka.Compression `koanf:"compression" yaml:"compression"`
	// MaxMessageBytes is the largest record that is sent. Set it to the topics'
	// max.message.bytes. Default: kafka.DefaultMaxMessageBytes.
	MaxMessageBytes int `koanf:"max_message_bytes" yaml:"max_message_bytes"`
	// TLS encrypts connections. Default: it does not.
	TLS KafkaTLS `koanf:"tls" yaml:"tls"`
	// SASL authenticates with a name and a password. Default: it does not.
	SASL KafkaSASL `koanf:"sasl" yaml:"sasl"`
	// CreateTopics creates topics that are missing, where any key of it is given. Default:
	// nil, messages for them wait in the outbox.
	CreateTopics *KafkaTopics `koanf:"create_topics" yaml:"create_topics"`
}

// AMQP is the plain data of amqp.Config.
type AMQP struct {
	// URI is the address: amqp://user:password@host:5672/vhost, or amqps:// for TLS.
	// Special characters of a user name, a password or a vhost are percent-encoded.
	URI URI `koanf:"uri" yaml:"uri"`
	// Topology says what a destination is. Default: TopologyQueue.
	Topology Topology `koanf:"topology" yaml:"topology"`
	// DeclareQueues says whether the publisher declares the queue of a destination, so
	// that messages published before the first consumer came have a place to wait.
	// Default: true for TopologyQueue without RoutingKeyMetadata; other topologies have no
	// queue to declare.
	DeclareQueues *bool `koanf:"declare_queues" yaml:"declare_queues"`
	// QueueType is the type of the queues that the publisher declares. A queue that exists
	// with another type takes no messages. Default: the broker's, which is
	// QueueTypeClassic. (Limits of deliveries, dead letters and the like are set by
	// policies of RabbitMQ, or with amqp.Config.)
	QueueType QueueType `koanf:"queue_type" yaml:"queue_type"`
	// Exchange is the one exchange of TopologyTopic or TopologyDirect. Default: the
	// destination.
	Exchange string `koanf:"exchange" yaml:"exchange"`
	// ExchangeMetadata is the metadata key under which messages carry the name of their
	// exchange, which must exist; see amqp.Config. Default: none.
	ExchangeMetadata string `koanf:"exchange_metadata" yaml:"exchange_metadata"`
	// RoutingKeyMetadata is the metadata key under which messages carry their routing key,
	// or with TopologyQueue their queue; see amqp.Config. Default: none, or
	// amqp.DefaultRoutingKeyMetadata for TopologyTopic and TopologyDirect where the
	// destination is the exchange.
	RoutingKeyMetadata string `koanf:"routing_key_metadata" yaml:"routing_key_metadata"`
	// ExistingExchanges keeps the publisher from declaring exchanges, for a user who may not
	// configure any. Default: false.
	ExistingExchanges bool `koanf:"existing_exchanges" yaml:"existing_exchanges"`
	// TLS is used where the URI begins with amqps.
	TLS TLS `koanf:"tls" yaml:"tls"`
}

// config is not to be used where there are problems: it may lack what was asked for.
func (k Kafka) config() (kafka.Config, []*keyError) {
	encryption, problems := k.TLS.config()
	creation, more := k.CreateTopics.config()
	return kafka.Config{
		Brokers:         k.Brokers,
		ClientID:        k.ClientID,
		Partitioner:     k.Partitioner,
		Compression:     k.Compression,
		MaxMessageBytes: k.MaxMessageBytes,
		TLS:             encryption,
		SASL:            k.SASL.mechanism(),
		SASLWithoutTLS:  k.SASL.WithoutTLS && k.SASL.Mechanism != "",
		CreateTopics:    creation,
	}, append(problems, more...)
}

// Validate reports everything that cannot work, all at once: what is missing for the
// Kind, and what is set and wrong in either section, so that a swap does not fail on the
// day it is needed. Zero values stand for their defaults. Each error wraps
// ErrInvalidConfig and names the key and what is allowed.
func (c Config) Validate() error {
	return errors.Join(asErrors(c.check())...)
}

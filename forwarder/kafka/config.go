package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"strings"

	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
)

// Partitioner says how a record's key chooses its partition.
type Partitioner string

const (
	// Murmur2 is what Java clients and most others do: topics written by both are
	// partitioned alike.
	Murmur2 Partitioner = "murmur2"
	// FNV1a is what sarama, and with it watermill-kafka's publisher, does: choose it to
	// go on with topics that such a publisher has written.
	FNV1a Partitioner = "fnv1a"
)

// DefaultMaxMessageBytes fits Kafka's default of max.message.bytes for a topic.
const DefaultMaxMessageBytes = 1_000_012

// ErrInvalidConfig says that a Config cannot work; the error that wraps it names the
// field, its value and what is allowed.
var ErrInvalidConfig = errors.New("kafka: invalid config")

// Config configures a Publisher.
type Config struct {
	// Brokers are the addresses (host:port) to find the cluster by. At least one.
	Brokers []string
	// ClientID names this client in the broker's logs and quotas. Default:
	// "watermill-outbox".
	ClientID string
	// Marshaler turns a message into a record's value and headers; the key is the
	// partition key whatever it says. Default: watermill-kafka's DefaultMarshaler.
	Marshaler kafka.Marshaler
	// Partitioner is Murmur2 or FNV1a. Changing it moves keys to other partitions.
	// Default: Murmur2.
	Partitioner Partitioner
	// Compression says how batches are compressed. Default: NoCompression, as with Java's
	// and sarama's producers; LZ4 and Zstd save much of the network and of the broker's
	// disk where payloads are text.
	Compression Compression
	// MaxMessageBytes is the largest record that is sent, and the largest batch of
	// records of one partition, both before compression; a larger record is refused. Set
	// it to the topics' max.message.bytes: what exceeds that of its topic is refused
	// alone, by the broker, after some detours. Default: DefaultMaxMessageBytes.
	MaxMessageBytes int
	// TLS encrypts all connections, and identifies this client where it holds a
	// certificate. A ServerName that is empty is that of each broker's address. It must
	// not be changed after it was handed over. Default: nil, no TLS.
	TLS *tls.Config
	// SASL authenticates all connections: what packages plain, scram, oauth and others
	// below github.com/twmb/franz-go/pkg/sasl make. A function that returns credentials
	// is called for each connection, so they may change. Default: nil, no authentication.
	SASL sasl.Mechanism
	// SASLWithoutTLS allows the mechanisms PLAIN and OAUTHBEARER without TLS. They send
	// the password or the token as it is, for anyone between here and the broker to
	// read. SCRAM does not need it: it proves the password, but leaves weak ones to be
	// guessed. Default: false, such a Config is refused.
	SASLWithoutTLS bool
	// CreateTopics creates the topics that are missing. Default: nil, none is created,
	// whatever the broker's auto.create.topics.enable says; messages for a missing topic
	// wait in the outbox.
	CreateTopics *TopicCreation
}

func (c *Config) setDefaults() {
	if c.ClientID == "" {
		c.ClientID = "watermill-outbox"
	}
	if c.Marshaler == nil {
		c.Marshaler = kafka.DefaultMarshaler{}
	}
	if c.Partitioner == "" {
		c.Partitioner = Murmur2
	}
	if c.Compression == "" {
		c.Compression = NoCompression
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = DefaultMaxMessageBytes
	}
}

// Validate reports every field that cannot work, all at once. Zero values stand for
// their defaults. The error wraps ErrInvalidConfig.
func (c Config) Validate() error {
	c.setDefaults()
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, fmt.Errorf("%w: Brokers is empty, at least one host:port is needed", ErrInvalidConfig))
	}
	for _, broker := range c.Brokers {
		if host, port, err := net.SplitHostPort(broker); err != nil || host == "" || port == "" || strings.ContainsAny(broker, "/, ") {
			errs = append(errs, fmt.Errorf("%w: Brokers has %q, each must be one host:port", ErrInvalidConfig, broker))
		}
	}
	if c.Partitioner != Murmur2 && c.Partitioner != FNV1a {
		errs = append(errs, fmt.Errorf("%w: Partitioner is %q, allowed are %q and %q", ErrInvalidConfig, c.Partitioner, Murmur2, FNV1a))
	}
	if c.MaxMessageBytes < minMessageBytes || c.MaxMessageBytes > maxMessageBytes {
		errs = append(errs, fmt.Errorf("%w: MaxMessageBytes is %d, allowed is %d to %d",
			ErrInvalidConfig, c.MaxMessageBytes, minMessageBytes, maxMessageBytes))
	}
	if _, ok := codecs[c.Compression]; !ok {
		errs = append(errs, fmt.Errorf("%w: Compression is %q, allowed are %q, %q, %q, %q and %q",
			ErrInvalidConfig, c.Compression, NoCompression, Gzip, Snappy, LZ4, Zstd))
	}
	errs = append(errs, c.CreateTopics.check()...)
	return errors.Join(append(errs, c.checkSecurity())...)
}

// The client library's limits for a batch of records, and for a request.
const (
	minMessageBytes = 512
	maxMessageBytes = 100 << 20
)

func (c Config) hasher() kgo.PartitionerHasher {
	if c.Partitioner == FNV1a {
		return kgo.SaramaCompatHasher(fnv1a)
	}
	return nil // the client library's default, murmur2
}

func fnv1a(key []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(key) // a hash never fails
	return h.Sum32()
}

package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kfake"
)

// DefaultPartitions is the number of partitions of a topic where
// KafkaConfig.Partitions is zero.
const DefaultPartitions = 4

// KafkaConfig says what [StartKafka] starts. The zero value is a broker on a
// free port without topics.
type KafkaConfig struct {
	// Port on 127.0.0.1 to listen on. Zero: a free port.
	Port int

	// Topics exist from the start. Others can be created by clients'
	// requests; none comes into being by being written to or read from.
	Topics []string

	// Partitions of each topic. Zero: DefaultPartitions.
	Partitions int32
}

// Kafka is a broker within this process, in memory, that speaks Kafka's wire
// protocol to clients of any process of this machine. It serves idempotent
// producers and consumer groups; sarama's groups up to Version 2.3.0, of which
// watermill-kafka's default is one. Its methods are safe for concurrent use.
type Kafka struct {
	cluster *kfake.Cluster
	brokers []string
}

// StartKafka starts a cluster of one broker, which runs until Close. ctx
// bounds the start alone.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*Kafka, error) {
	if cfg.Port < 0 || cfg.Port > 65535 {
		return nil, fmt.Errorf("embedded: port %d is not between 0 and 65535", cfg.Port)
	}

	if cfg.Partitions < 0 {
		return nil, errors.New("embedded: a negative number of partitions")
	}

	if cfg.Partitions == 0 {
		cfg.Partitions = DefaultPartitions
	}

	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("embedded: start kafka: %w", err)
	}

	cluster, err := kfake.NewCluster(
		kfake.Ports(cfg.Port),
		kfake.DefaultNumPartitions(int(cfg.Partitions)),
		kfake.SeedTopics(cfg.Partitions, cfg.Topics...),
		kfake.ListenFn(func(network, address string) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, network, address)
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("embedded: start kafka: %w", err)
	}

	return &Kafka{cluster: cluster, brokers: cluster.ListenAddrs()}, nil
}

// Brokers is the list of addresses for a client's configuration, one here.
func (k *Kafka) Brokers() []string { return append([]string(nil), k.brokers...) }

// Close ends the broker and its clients' connections; what they wrote is gone.
// It does not block, and further calls do nothing. Close consumers before it:
// they try for some time to reach a broker that is away.
func (k *Kafka) Close() error {
	k.cluster.Close()

	return nil
}

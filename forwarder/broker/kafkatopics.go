package broker

import (
	"strings"

	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

// KafkaTopics says how missing topics are created: the plain data of
// kafka.TopicCreation.
type KafkaTopics struct {
	// Partitions is their number. Default: the broker's num.partitions.
	Partitions int `koanf:"partitions" yaml:"partitions"`
	// ReplicationFactor is the number of brokers that hold a copy. Default: the broker's
	// default.replication.factor.
	ReplicationFactor int `koanf:"replication_factor" yaml:"replication_factor"`
	// Settings are settings of the topic, each as "min.insync.replicas=2". A value with a
	// comma needs a list in YAML. Default: the broker's.
	Settings []string `koanf:"settings" yaml:"settings"`
}

func (k *KafkaTopics) config() (*kafka.TopicCreation, []*keyError) {
	if k == nil {
		return nil, nil
	}
	var problems []*keyError
	creation := &kafka.TopicCreation{Partitions: k.Partitions, ReplicationFactor: k.ReplicationFactor}
	wrong := func(i int, what string) {
		problems = append(problems, keyErrorf("kafka.create_topics.settings", "number %d of %d is %s", i+1, len(k.Settings), what))
	}
	for i, setting := range k.Settings {
		name, value, ok := strings.Cut(setting, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			wrong(i, "not name=value")
			continue
		}
		if creation.Settings == nil {
			creation.Settings = map[string]string{}
		}
		if _, ok := creation.Settings[name]; ok {
			wrong(i, "given twice")
		}
		creation.Settings[name] = strings.TrimSpace(value)
	}
	return creation, problems
}

package broker

import "github.com/watermill-outbox/outbox/forwarder/kafka"

// LoadFrom is Load with an environment of a test's own.
func LoadFrom(file, envPrefix string, environment ...string) (Config, error) {
	return load(file, envPrefix, func() []string { return environment })
}

// PublisherConfig is what the publisher is opened with.
func (k Kafka) PublisherConfig() kafka.Config {
	cfg, _ := k.config()
	return cfg
}

package broker

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

func (c Config) check() []*keyError {
	if len(c.Brokers) > 0 {
		return c.checkSeveral()
	}
	var problems []*keyError
	const stray = "is set, but there are no brokers to choose from"
	if len(c.Routes) > 0 {
		problems = append(problems, keyErrorf("routes", stray))
	}
	if len(c.Destinations) > 0 {
		problems = append(problems, keyErrorf("destinations", stray))
	}
	problems = append(problems, oneOf("kind", c.Kind, KindKafka, KindAMQP)...)
	problems = append(problems, c.Kafka.check(c.Kind == KindKafka)...)
	return append(problems, c.AMQP.check(c.Kind == KindAMQP)...)
}

// check leaves out what is missing where the section is not used.
func (k Kafka) check(used bool) []*keyError {
	cfg, others := k.config()
	others = append(others, k.SASL.check(k.TLS.Enabled)...)
	cfg.TLS, cfg.SASL, cfg.SASLWithoutTLS = nil, nil, false // checked here, by key
	var problems []*keyError
	for i, broker := range k.Brokers {
		if !isAddress(broker) {
			problems = append(problems, keyErrorf("kafka.brokers", "number %d of %d is not host:port", i+1, len(k.Brokers)))
		}
	}
	if len(problems) > 0 || (len(k.Brokers) == 0 && !used) {
		cfg.Brokers = []string{"localhost:9092"} // said already, or nothing to say
	}
	if k.Partitioner != "" {
		if wrong := oneOf("kafka.partitioner", k.Partitioner, kafka.Murmur2, kafka.FNV1a); wrong != nil {
			problems = append(problems, wrong...)
			cfg.Partitioner = ""
		}
	}
	if k.Compression != "" {
		allowed := []kafka.Compression{kafka.NoCompression, kafka.Gzip, kafka.Snappy, kafka.LZ4, kafka.Zstd}
		if wrong := oneOf("kafka.compression", k.Compression, allowed...); wrong != nil {
			problems = append(problems, wrong...)
			cfg.Compression = ""
		}
	}
	problems = append(problems, others...)
	return append(problems, named("kafka", cfg.Validate(), map[string]string{
		"Brokers":                        "kafka.brokers",
		"MaxMessageBytes":                "kafka.max_message_bytes",
		"CreateTopics.Partitions":        "kafka.create_topics.partitions",
		"CreateTopics.ReplicationFactor": "kafka.create_topics.replication_factor",
	})...)
}

func oneOf[T ~string](key string, value T, allowed ...T) []*keyError {
	if slices.Contains(allowed, value) {
		return nil
	}
	return []*keyError{keyErrorf(key, "is %s, allowed are %s", shown(string(value)), quoted(allowed))}
}

// isAddress is stricter than the client library, which takes "a:9092;b:9092" or a URL
// for a host and fails when it connects.
func isAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "@/;, ") {
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number > 0
}

// named gives each of the joined errors of a section's own Validate the key that it is
// about. They speak of fields.
func named(section string, err error, fields map[string]string) []*keyError {
	if err == nil {
		return nil
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // the join itself
		errs = joined.Unwrap()
	}
	problems := make([]*keyError, len(errs))
	for i, err := range errs {
		problems[i] = &keyError{key: section, err: err}
		for field, key := range fields {
			if strings.Contains(err.Error(), field) {
				problems[i].key = key
			}
		}
	}
	return problems
}

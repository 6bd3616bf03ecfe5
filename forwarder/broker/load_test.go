package broker_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

const prefix = "OUTBOX_BROKER_"

func yamlFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "broker.yaml")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func TestLoad(t *testing.T) {
	t.Parallel()
	full := broker.Config{
		Kind: broker.KindAMQP,
		Kafka: broker.Kafka{
			Brokers: []string{"a:9092", "b:9092"}, ClientID: "orders", Partitioner: kafka.FNV1a, MaxMessageBytes: 2_000_000,
			Compression:  kafka.LZ4,
			TLS:          broker.KafkaTLS{Enabled: true, ServerName: "kafka.test"},
			SASL:         broker.KafkaSASL{Mechanism: broker.SASLScramSHA512, User: "u", Password: "p"},
			CreateTopics: &broker.KafkaTopics{Partitions: 6, ReplicationFactor: 3, Settings: []string{"min.insync.replicas=2", "cleanup.policy=compact"}},
		},
		AMQP: broker.AMQP{URI: "amqp://u:p@h/", Topology: broker.TopologyQueue, DeclareQueues: new(false)},
	}
	routed := broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{
		URI: "amqps://h/", Topology: broker.TopologyTopic, Exchange: "events", RoutingKeyMetadata: "key", ExistingExchanges: true,
		TLS: broker.TLS{ServerName: "rabbit"},
	}}
	kafkaOnly := broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{"a:9092", "b:9092"}}}
	for name, test := range map[string]struct {
		yaml        string
		environment []string
		want        broker.Config
	}{
		"file": {want: full, yaml: `
kind: amqp
kafka:
  brokers: [ "a:9092 ", b:9092]
  client_id: orders
  partitioner: fnv1a
  max_message_bytes: 2000000
  compression: lz4
  tls: {enabled: true, server_name: kafka.test}
  sasl: {mechanism: SCRAM-SHA-512, user: u, password: p}
  create_topics: {partitions: 6, replication_factor: 3, settings: [min.insync.replicas=2, cleanup.policy=compact]}
amqp:
  uri: amqp://u:p@h/
  topology: queue
  declare_queues: false
`},
		"environment": {want: full, environment: []string{
			"OUTBOX_BROKER_KIND=amqp",
			"OUTBOX_BROKER_KAFKA_BROKERS= a:9092, b:9092 ,",
			"OUTBOX_BROKER_KAFKA_CLIENT_ID=orders",
			"OUTBOX_BROKER_KAFKA_PARTITIONER=fnv1a",
			"OUTBOX_BROKER_KAFKA_MAX_MESSAGE_BYTES=2000000",
			"OUTBOX_BROKER_KAFKA_COMPRESSION=lz4",
			"OUTBOX_BROKER_KAFKA_TLS_ENABLED=true",
			"OUTBOX_BROKER_KAFKA_TLS_SERVER_NAME=kafka.test",
			"OUTBOX_BROKER_KAFKA_SASL_MECHANISM=SCRAM-SHA-512",
			"OUTBOX_BROKER_KAFKA_SASL_USER=u",
			"OUTBOX_BROKER_KAFKA_SASL_PASSWORD=p",
			"OUTBOX_BROKER_KAFKA_CREATE_TOPICS_PARTITIONS=6",
			"OUTBOX_BROKER_KAFKA_CREATE_TOPICS_REPLICATION_FACTOR=3",
			"OUTBOX_BROKER_KAFKA_CREATE_TOPICS_SETTINGS=min.insync.replicas=2,cleanup.policy=compact",
			"OUTBOX_BROKER_AMQP_URI=amqp://u:p@h/\n",
			"OUTBOX_BROKER_AMQP_TOPOLOGY=queue",
			"OUTBOX_BROKER_AMQP_DECLARE_QUEUES=false",
			"OUTBOX_BROKERS=another program's", "OUTBOX_X=y", "PATH=/bin",
		}},
		"sections in sections": {want: routed, yaml: `
kind: amqp
amqp:
  uri: amqps://h/
  topology: topic
  exchange: events
  routing_key_metadata: key
  existing_exchanges: true
  tls:
    server_name: rabbit
`},
		"sections in sections, environment": {want: routed, environment: []string{
			"OUTBOX_BROKER_KIND=amqp",
			"OUTBOX_BROKER_AMQP_URI=amqps://h/",
			"OUTBOX_BROKER_AMQP_TOPOLOGY=topic",
			"OUTBOX_BROKER_AMQP_EXCHANGE=events",
			"OUTBOX_BROKER_AMQP_ROUTING_KEY_METADATA=key",
			"OUTBOX_BROKER_AMQP_EXISTING_EXCHANGES=true",
			"OUTBOX_BROKER_AMQP_TLS_SERVER_NAME=rabbit",
		}},
		"the environment wins, key by key": {
			want: kafkaOnly, yaml: "kind: amqp\nkafka: {brokers: c:9092, client_id: }\n",
			environment: []string{"OUTBOX_BROKER_KIND=kafka", "OUTBOX_BROKER_KAFKA_BROKERS=a:9092,b:9092"},
		},
		"empty variables are not set": {
			want: kafkaOnly, yaml: "kind: kafka\nkafka: {brokers: 'a:9092, b:9092'}\namqp:\n",
			environment: []string{"OUTBOX_BROKER_KIND=", "OUTBOX_BROKER_KAFKA_BROKERS= ", "OUTBOX_BROKER_TYPO="},
		},
		"aliases": {
			want: broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{"kafka:1"}, ClientID: "kafka"}},
			yaml: "kind: &k kafka\nkafka: {brokers: ['kafka:1'], client_id: *k}\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := ""
			if test.yaml != "" {
				file = yamlFile(t, test.yaml)
			}
			for _, prefix := range []string{prefix, strings.TrimSuffix(prefix, "_")} {
				got, err := broker.LoadFrom(file, prefix, test.environment...)
				require.NoError(t, err)
				require.Equal(t, test.want, got)
			}
		})
	}
}

func TestLoadReadsTheEnvironment(t *testing.T) {
	t.Setenv("TEST_BROKER_KIND", "kafka")
	t.Setenv("TEST_BROKER_KAFKA_BROKERS", "a:9092")
	cfg, err := broker.Load("", "TEST_BROKER_")
	require.NoError(t, err)
	require.Equal(t, []string{"a:9092"}, cfg.Kafka.Brokers)
	_, err = broker.Load("", "")
	require.ErrorContains(t, err, `kind: is ""`, "no prefix, no environment")
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const valid = "kind: kafka\nkafka: {brokers: [a:9092]}\n"
	for name, test := range map[string]struct {
		yaml        string
		environment []string
		want        []string // after "broker: invalid config: "
	}{
		"unknown keys":      {yaml: valid + "kinds: x\namqp:\n  url: x\n", want: []string{"kinds (F:3): unknown key, did you mean kind?", "amqp.url (F:5): unknown key, did you mean amqp.uri?"}},
		"unknown section":   {yaml: valid + "kafak: {client_id: x}\n", want: []string{"kafak (F:3): unknown key, did you mean kafka?"}},
		"section forgotten": {yaml: valid + "client_id: x\n", want: []string{"client_id (F:3): unknown key, did you mean kafka.client_id?"}},
		"wrong section":     {yaml: valid + "amqp: {client_id: x}\n", want: []string{"amqp.client_id (F:3): unknown key, did you mean kafka.client_id?"}},
		"case":              {yaml: valid + "AMQP: {}\n", want: []string{"AMQP (F:3): unknown key, did you mean amqp?"}},
		"nothing near": {yaml: valid + "something: x\n", want: []string{
			"something (F:3): unknown key, there are kind, kafka, kafka.brokers, kafka.client_id, kafka.partitioner, kafka.compression, kafka.max_message_bytes, " +
				"kafka.tls, kafka.tls.enabled, kafka.tls.ca_file, kafka.tls.cert_file, kafka.tls.key_file, kafka.tls.server_name, " +
				"kafka.sasl, kafka.sasl.mechanism, kafka.sasl.user, kafka.sasl.password, kafka.sasl.without_tls, " +
				"kafka.create_topics, kafka.create_topics.partitions, kafka.create_topics.replication_factor, kafka.create_topics.settings, " +
				"amqp, amqp.uri, amqp.topology, amqp.declare_queues",
		}},
		"no names":    {yaml: valid + "amqp://u:p@h/: x\namqp: {? [a] : b}\n", want: []string{"? (F:3): unknown key, which is no name and not shown here", "amqp.? (F:4): unknown key, which is no name and not shown here"}},
		"unknown env": {yaml: valid, environment: []string{"OUTBOX_BROKER_KAFKA_BROKER=b:9092", "OUTBOX_BROKER_URI=x"}, want: []string{"OUTBOX_BROKER_KAFKA_BROKER: unknown environment variable, did you mean OUTBOX_BROKER_KAFKA_BROKERS?", "OUTBOX_BROKER_URI: unknown environment variable, did you mean OUTBOX_BROKER_AMQP_URI?"}},
		"twice": {yaml: valid + "amqp:\n  uri: a\n  uri: b\nkafka: {}\n", want: []string{
			"amqp.uri (F:5): the key is given twice, first in line 4", "kafka (F:6): the key is given twice, first in line 2",
		}},
		"twice, once as a path": {yaml: "kind: kafka\nkafka.brokers: a:9092\nkafka: {brokers: b:9092, tls.ca_file: c, tls: {ca_file: d, enabled: true}}\n", want: []string{
			"kafka.brokers (F:3): the key is given twice, first in line 2", "kafka.tls.ca_file (F:3): the key is given twice, first in line 3",
		}},
		"types": {
			yaml: "kind: [kafka]\nkafka:\n  brokers: {a: b}\n  client_id: 7\n  max_message_bytes: lots\n  partitioner: 2024-01-01\namqp: text\n",
			want: []string{
				"kind (F:1): is a list, text is needed", "kafka.brokers (F:3): is a section, a list of texts is needed",
				"kafka.client_id (F:4): is a number, text is needed", "kafka.max_message_bytes (F:5): is text, a whole number is needed",
				"kafka.partitioner (F:6): is a date, text is needed", "amqp (F:7): is text, a section of keys is needed",
			},
		},
		"more types": {
			yaml: "kind: kafka\nkafka: {brokers: [1], max_message_bytes: 1.5}\namqp: {declare_queues: 'yes', uri: true}\n",
			want: []string{
				"kafka.brokers (F:2): is a list, a list of texts is needed", "kafka.max_message_bytes (F:2): is a number, a whole number is needed",
				"amqp.declare_queues (F:3): is text, true or false is needed", "amqp.uri (F:3): is true or false, text is needed",
			},
		},
		"types in the environment": {
			yaml: valid, environment: []string{"OUTBOX_BROKER_AMQP_DECLARE_QUEUES=perhaps", "OUTBOX_BROKER_KAFKA_MAX_MESSAGE_BYTES=1MB"},
			want: []string{
				"amqp.declare_queues (OUTBOX_BROKER_AMQP_DECLARE_QUEUES): is text, true or false is needed",
				"kafka.max_message_bytes (OUTBOX_BROKER_KAFKA_MAX_MESSAGE_BYTES): is text, a whole number is needed",
			},
		},
		"contradictions, with everything else": {
			yaml:        valid + "typo: 1\namqp: {topology: pubsub, declare_queues: true}\n",
			environment: []string{"OUTBOX_BROKER_KIND=rabbit", "OUTBOX_BROKER_TYPO=1", "OUTBOX_BROKER_KAFKA_PARTITIONER=murmur3"},
			want: []string{
				"typo (F:3): unknown key, there are", "OUTBOX_BROKER_TYPO: unknown environment variable, there are",
				`kind (OUTBOX_BROKER_KIND): is "rabbit", allowed are "kafka" and "amqp"`,
				`kafka.partitioner (OUTBOX_BROKER_KAFKA_PARTITIONER): is "murmur3", allowed are "murmur2" and "fnv1a"`,
				`amqp.declare_queues (F:4): true contradicts amqp.topology "pubsub"`,
			},
		},
		"unknown key, deeper": {yaml: valid + "amqp: {tls: {ca: x, cert_file: 7}}\n", want: []string{
			"amqp.tls.ca (F:3): unknown key, did you mean", "amqp.tls.cert_file (F:3): is a number, text is needed",
		}},
		"no section, deeper": {yaml: valid + "amqp: {uri: amqp://h, tls: true}\n", want: []string{"amqp.tls (F:3): is true or false, a section of keys is needed"}},
		"no section":         {yaml: "text\n", want: []string{"F (F:1): is text, a section of keys is needed"}},
		"two documents":      {yaml: valid + "---\nkind: amqp\n", want: []string{"F: there is more than one document in it, one is allowed"}},
		"no YAML":            {yaml: valid + "\t- x\n", environment: []string{"OUTBOX_BROKER_TYPO=1"}, want: []string{"F: yaml: line 3: found character that cannot start any token", "OUTBOX_BROKER_TYPO: unknown"}},
		"empty file":         {yaml: "# kind: kafka\n", want: []string{`kind: is "", allowed are`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := yamlFile(t, test.yaml)
			cfg, err := broker.LoadFrom(file, prefix, test.environment...)
			require.Zero(t, cfg)
			got := joined(t, err)
			require.Len(t, got, len(test.want), "%v", err)
			for i, want := range test.want {
				require.ErrorIs(t, got[i], broker.ErrInvalidConfig)
				require.True(t, strings.HasPrefix(strings.ReplaceAll(got[i].Error(), file, "F"), "broker: invalid config: "+want), "%v\n%v", want, got[i])
			}
		})
	}
}

func joined(t *testing.T, err error) []error {
	t.Helper()
	require.Error(t, err)
	list, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	return list.Unwrap()
}

func TestMissingFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "none.yaml")
	_, err := broker.LoadFrom(file, prefix, "OUTBOX_BROKER_TYPO=1")
	require.ErrorIs(t, err, broker.ErrInvalidConfig)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, file)
	require.ErrorContains(t, err, "OUTBOX_BROKER_TYPO")
	require.NotContains(t, err.Error(), "kind", "it may stand in the file")
	_, err = broker.LoadFrom(t.TempDir(), "")
	require.ErrorIs(t, err, broker.ErrInvalidConfig)
}

package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder/amqp"
	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	oneBroker := broker.Kafka{Brokers: []string{"a:9092"}}
	for name, test := range map[string]struct {
		config broker.Config
		want   []string // parts of the errors; none: valid
	}{
		"kafka":          {config: broker.Config{Kind: broker.KindKafka, Kafka: oneBroker}},
		"IPv6":           {config: broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{"[::1]:9092"}}}},
		"amqp":           {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqp://h"}}},
		"TLS, vhost":     {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqps://u:p%2F%40@h:5671/%2F?heartbeat=5", Topology: broker.TopologyQueue}}},
		"pubsub":         {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqp://h", Topology: broker.TopologyPubSub, DeclareQueues: new(false)}}},
		"both":           {config: broker.Config{Kind: broker.KindAMQP, Kafka: oneBroker, AMQP: broker.AMQP{URI: "amqp://h"}}},
		"zero":           {want: []string{`kind: is "", allowed are "kafka" and "amqp"`}},
		"no brokers":     {config: broker.Config{Kind: broker.KindKafka}, want: []string{"kafka.brokers: kafka: invalid config: Brokers is empty"}},
		"no addresses":   {config: broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{"a:9092;b:9092", "a", "", "a:0", ":1", "kafka://a:9092", "a:x", "ok:1"}}}, want: []string{"kafka.brokers: number 1 of 8 is not host:port", "number 2", "number 3", "number 4", "number 5", "number 6", "number 7"}},
		"kafka's own":    {config: broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{"a:9092"}, MaxMessageBytes: 5, Partitioner: "x"}}, want: []string{`kafka.partitioner: is "x", allowed are`, "kafka.max_message_bytes: kafka: invalid config: MaxMessageBytes is 5, allowed is 512 to"}},
		"no URI":         {config: broker.Config{Kind: broker.KindAMQP}, want: []string{"amqp.uri: is empty, amqp://"}},
		"wrong scheme":   {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "http://h"}}, want: []string{"amqp.uri: amqp: invalid config: AMQP.Connection.AmqpURI: it is not an AMQP URI"}},
		"topology":       {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqp://h", Topology: "fanout"}}, want: []string{`amqp.topology: is "fanout", allowed are "queue", "pubsub", "topic" and "direct"`}},
		"contradiction":  {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{Topology: broker.TopologyPubSub, DeclareQueues: new(true)}}, want: []string{`amqp.declare_queues: true contradicts amqp.topology "pubsub"`, "amqp.uri: is empty"}},
		"masked":         {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqp://u:xxxxx@h/"}}, want: []string{"amqp.uri: the password is masked"}},
		"all masked":     {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "xxxxx"}}, want: []string{"amqp.uri: the password is masked"}},
		"slash":          {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqp://u:12/34@h/"}}, want: []string{"amqp.uri: an @ stands after the host"}},
		"no slashes":     {config: broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqp:u:p@h"}}, want: []string{"amqp.uri: two slashes are missing"}},
		"the other kind": {config: broker.Config{Kind: broker.KindKafka, Kafka: oneBroker, AMQP: broker.AMQP{URI: "http://h", Topology: "x"}}, want: []string{"amqp.topology", "amqp.uri"}},
		"other, kafka":   {config: broker.Config{Kind: broker.KindAMQP, Kafka: broker.Kafka{MaxMessageBytes: 1}, AMQP: broker.AMQP{URI: "amqp://h"}}, want: []string{"kafka.max_message_bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := test.config.Validate()
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			got := joined(t, err)
			require.Len(t, got, len(test.want), "%v", err)
			for i, want := range test.want {
				require.ErrorIs(t, got[i], broker.ErrInvalidConfig)
				require.ErrorContains(t, got[i], want)
			}
		})
	}
}

func TestValidateRouting(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		section broker.AMQP
		want    []string // parts of the errors; none: valid
	}{
		"topic, one exchange":        {section: broker.AMQP{Topology: broker.TopologyTopic, Exchange: "events", DeclareQueues: new(false)}},
		"topic, one exchange, keys":  {section: broker.AMQP{Topology: broker.TopologyTopic, Exchange: "events", RoutingKeyMetadata: "key"}},
		"direct":                     {section: broker.AMQP{Topology: broker.TopologyDirect, ExistingExchanges: true}},
		"exchange in the metadata":   {section: broker.AMQP{Topology: broker.TopologyTopic, ExchangeMetadata: "exchange", RoutingKeyMetadata: "key"}},
		"queue in the metadata":      {section: broker.AMQP{RoutingKeyMetadata: "queue"}},
		"quorum":                     {section: broker.AMQP{QueueType: broker.QueueTypeQuorum}},
		"classic":                    {section: broker.AMQP{QueueType: broker.QueueTypeClassic, DeclareQueues: new(true)}},
		"queue type":                 {section: broker.AMQP{QueueType: "stream"}, want: []string{`amqp.queue_type: is "stream", allowed are "classic" and "quorum"`}},
		"two wrong names":            {section: broker.AMQP{QueueType: "x", Topology: "y"}, want: []string{"amqp.topology", "amqp.queue_type"}},
		"topic, declared":            {section: broker.AMQP{Topology: broker.TopologyTopic, DeclareQueues: new(true)}, want: []string{`amqp.declare_queues: true contradicts amqp.topology "topic"`}},
		"queue in metadata, declare": {section: broker.AMQP{RoutingKeyMetadata: "queue", DeclareQueues: new(true)}, want: []string{"amqp.declare_queues: true contradicts amqp.routing_key_metadata"}},
		"quorum, not declared":       {section: broker.AMQP{QueueType: broker.QueueTypeQuorum, DeclareQueues: new(false)}, want: []string{"amqp.queue_type: says how queues are declared, but none is"}},
		"quorum, topic":              {section: broker.AMQP{QueueType: broker.QueueTypeQuorum, Topology: broker.TopologyTopic}, want: []string{"amqp.queue_type: says how queues are declared, but none is"}},
		"exchange of queues":         {section: broker.AMQP{Exchange: "events"}, want: []string{`amqp.exchange: needs amqp.topology "topic" or "direct"`}},
		"one exchange and many":      {section: broker.AMQP{Topology: broker.TopologyTopic, Exchange: "events", ExchangeMetadata: "exchange"}, want: []string{"amqp.exchange_metadata: needs amqp.topology"}},
		"queues, exchange metadata":  {section: broker.AMQP{ExchangeMetadata: "exchange"}, want: []string{"amqp.exchange_metadata: needs amqp.topology"}},
		"fanout, routing keys":       {section: broker.AMQP{Topology: broker.TopologyPubSub, RoutingKeyMetadata: "key"}, want: []string{`amqp.routing_key_metadata: contradicts amqp.topology "pubsub"`}},
		"queues, existing exchanges": {section: broker.AMQP{ExistingExchanges: true}, want: []string{`amqp.existing_exchanges: contradicts amqp.topology "queue"`}},
		"all at once":                {section: broker.AMQP{URI: "http://h", Exchange: "x", ExistingExchanges: true}, want: []string{"amqp.exchange:", "amqp.existing_exchanges:", "amqp.uri: amqp: invalid config"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.section.URI == "" {
				test.section.URI = "amqp://h"
			}
			err := broker.Config{Kind: broker.KindAMQP, AMQP: test.section}.Validate()
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			got := joined(t, err)
			require.Len(t, got, len(test.want), "%v", err)
			for i, want := range test.want {
				require.ErrorContains(t, got[i], want)
			}
		})
	}
}

func TestErrorsOfThePublishersAreWrapped(t *testing.T) {
	t.Parallel()
	err := broker.Config{Kind: broker.KindKafka, AMQP: broker.AMQP{URI: "http://h"}}.Validate()
	require.ErrorIs(t, err, kafka.ErrInvalidConfig)
	require.ErrorIs(t, err, amqp.ErrInvalidConfig)
}

func TestKafkaSettingsReachThePublisher(t *testing.T) {
	t.Parallel()
	section := broker.Kafka{
		Brokers: []string{"a:9092"}, ClientID: "orders", Partitioner: kafka.FNV1a, MaxMessageBytes: 1000, Compression: kafka.Gzip,
		SASL:         broker.KafkaSASL{Mechanism: broker.SASLPlain, WithoutTLS: true},
		TLS:          broker.KafkaTLS{Enabled: true, ServerName: "kafka.test"},
		CreateTopics: &broker.KafkaTopics{Partitions: 6, ReplicationFactor: 3, Settings: []string{"a = b=c ", "d="}},
	}
	got := section.PublisherConfig()
	require.Equal(t, "kafka.test", got.TLS.ServerName)
	require.Equal(t, "PLAIN", got.SASL.Name())
	got.TLS, got.SASL = nil, nil
	require.Equal(t, kafka.Config{
		Brokers: []string{"a:9092"}, ClientID: "orders", Partitioner: kafka.FNV1a, MaxMessageBytes: 1000, Compression: kafka.Gzip,
		SASLWithoutTLS: true,
		CreateTopics:   &kafka.TopicCreation{Partitions: 6, ReplicationFactor: 3, Settings: map[string]string{"a": "b=c", "d": ""}},
	}, got)
	require.Nil(t, broker.Kafka{}.PublisherConfig().CreateTopics)
}

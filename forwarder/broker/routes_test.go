package broker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

const severalBrokers = `
brokers:
  main:
    kind: kafka
    kafka: {brokers: ['a:9092'], client_id: orders}
  eu-west:
    kind: amqp
    amqp: {uri: 'amqp://u:secret@h/', topology: pubsub}
routes:
  - audit.*=eu-west
  - "*=main"
destinations: [orders, audit.log]
`

func TestLoadSeveralBrokers(t *testing.T) {
	t.Parallel()
	cfg, err := broker.LoadFrom(yamlFile(t, severalBrokers), prefix,
		"OUTBOX_BROKER_BROKERS_EU_WEST_AMQP_URI=amqp://u:other@h/", "OUTBOX_BROKER_BROKERS_MAIN_KAFKA_MAX_MESSAGE_BYTES=1000")
	require.NoError(t, err)
	require.Equal(t, broker.Config{
		Brokers: map[string]broker.Named{
			"main":    {Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{"a:9092"}, ClientID: "orders", MaxMessageBytes: 1000}},
			"eu-west": {Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqp://u:other@h/", Topology: broker.TopologyPubSub}},
		},
		Routes:       []string{"audit.*=eu-west", "*=main"},
		Destinations: []string{"orders", "audit.log"},
	}, cfg)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		require.NotContains(t, fmt.Sprintf(verb, cfg), "other", verb)
		require.NotContains(t, fmt.Sprintf(verb, &cfg), "other", verb)
		require.NotContains(t, fmt.Sprintf(verb, cfg.Brokers["eu-west"]), "other", verb)
	}

	cfg, err = broker.LoadFrom(yamlFile(t, severalBrokers), prefix, "OUTBOX_BROKER_ROUTES=orders = main, *=eu-west")
	require.NoError(t, err)
	require.Equal(t, []string{"orders = main", "*=eu-west"}, cfg.Routes)
}

func TestSeveralBrokersThatCannotWork(t *testing.T) {
	t.Parallel()
	kafkaOnly := broker.Named{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{"a:9092"}}}
	for name, test := range map[string]struct {
		yaml        string
		config      broker.Config
		environment []string
		want        []string
	}{
		"routes without brokers": {yaml: "kind: kafka\nkafka: {brokers: 'a:1'}\nroutes: ['*=main']\ndestinations: [x]\n", want: []string{
			"routes (", "there are no brokers to choose from", "destinations (",
		}},
		"both manners": {yaml: "kind: kafka\nkafka: {brokers: 'a:1'}\namqp: {uri: 'amqp://h'}\nbrokers: {main: {kind: kafka, kafka: {brokers: 'a:1'}}}\nroutes: ['*=main']\n", want: []string{
			"kind (", "is set beside brokers: give each of them its kind", "kafka: is set beside brokers", "amqp: is set beside brokers, in the file or the environment",
		}},
		"keys of a broker": {yaml: "brokers: {main: {kind: kafka, kafka: {brokrs: 'a:1'}}}\nroutes: ['*=main']\n", want: []string{
			"brokers.main.kafka.brokrs (", "did you mean brokers.main.kafka.brokers?", "brokers.main.kafka.brokers: kafka: invalid config: Brokers is empty",
		}},
		"kind of a broker":    {yaml: "brokers: {main: {kind: x}}\nroutes: ['*=main']\n", want: []string{`brokers.main.kind (`, `is "x", allowed are "kafka" and "amqp"`}},
		"names":               {yaml: "brokers: {Main: {kind: kafka}}\nroutes: ['*=main']\n", want: []string{`brokers (`, `"Main" is no name for a broker, allowed are lower-case letters, digits and -`}},
		"names in Go":         {config: broker.Config{Brokers: map[string]broker.Named{"a.b": kafkaOnly}, Routes: []string{"*=a.b"}}, want: []string{`brokers: "a.b" is no name for a broker`}},
		"not a section":       {yaml: "brokers: [a]\n", want: []string{"brokers (", "is a list, a section of keys is needed"}},
		"unknown variable":    {yaml: severalBrokers, environment: []string{"OUTBOX_BROKER_BROKERS_EAST_KIND=kafka"}, want: []string{"OUTBOX_BROKER_BROKERS_EAST_KIND: unknown environment variable"}},
		"no broker in route":  {config: broker.Config{Brokers: map[string]broker.Named{"main": kafkaOnly}, Routes: []string{"*"}}, want: []string{"routes: number 1 of 1 is not destination=broker"}},
		"no routes":           {config: broker.Config{Brokers: map[string]broker.Named{"main": kafkaOnly}}, want: []string{`routes: forwarder: invalid routes: no route leads to broker "main"`}},
		"wrong broker":        {config: broker.Config{Brokers: map[string]broker.Named{"main": kafkaOnly}, Routes: []string{"a=b=east", "*=main"}}, want: []string{`the route from "a=b" leads to "east", brokers are ["main"]`}},
		"covered":             {config: broker.Config{Brokers: map[string]broker.Named{"main": kafkaOnly}, Routes: []string{"*=main", "a=main"}}, want: []string{`the route from "a" is never used`}},
		"destination unknown": {config: broker.Config{Brokers: map[string]broker.Named{"main": kafkaOnly}, Routes: []string{"a*=main"}, Destinations: []string{"a", "b"}}, want: []string{`destinations: forwarder: no route for the destination: "b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := test.config.Validate()
			if test.yaml != "" {
				_, err = broker.LoadFrom(yamlFile(t, test.yaml), prefix, test.environment...)
			} else {
				_, openErr := broker.Open(test.config, nil)
				require.Equal(t, err.Error(), openErr.Error())
			}
			require.ErrorIs(t, err, broker.ErrInvalidConfig)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "secret")
		})
	}
}

// One program, two brokers at once, by configuration: each destination reaches its own.
func TestOpenSeveralBrokers(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	queue := testamqp.Name(t)
	testamqp.DeleteQueueAfter(t, queue)
	cfg, err := broker.LoadFrom(yamlFile(t, `
brokers:
  main: {kind: kafka, kafka: {brokers: ['`+strings.Join(testkafka.Brokers(), "','")+`']}}
  rabbit: {kind: amqp, amqp: {uri: '`+testamqp.URI()+`'}}
routes: ['`+queue+`=rabbit', '*=main']
`), "")
	require.NoError(t, err)
	publisher, err := broker.Open(cfg, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	require.IsType(t, &forwarder.Routes{}, publisher)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, destination := range []string{topic, queue} {
		msg := message.NewMessage("event-"+destination, []byte("created"))
		msg.SetContext(ctx)
		require.NoError(t, publisher.Publish(destination, msg))
	}
	require.Equal(t, "event-"+topic, string(testkafka.NewConsumer(t, topic).Take(t, 1)[0].Key))
	require.Equal(t, "event-"+queue, testamqp.Take(t, queue, 1)[0].MessageId)
}

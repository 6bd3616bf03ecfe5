package broker_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-outbox/outbox/forwarder/broker"
)

// One file has both sections; the swap is a change of kind, here or in the environment
// (OUTBOX_BROKER_KIND=amqp).
func ExampleLoad() {
	folder, err := os.MkdirTemp("", "broker-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "broker.yaml")
	err = os.WriteFile(file, []byte(`
kind: kafka
kafka:
  brokers: [kafka-1:9092, kafka-2:9092]
amqp:
  uri: amqp://outbox:secret@rabbit:5672/
`), 0o600)
	if err != nil {
		fmt.Println(err)
		return
	}

	cfg, err := broker.Load(file, "OUTBOX_BROKER_")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, kind := range []broker.Kind{broker.KindKafka, broker.KindAMQP} {
		cfg.Kind = kind
		publisher, err := broker.Open(cfg, watermill.NopLogger{}) // connects with the first batch
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%T\n", publisher)
		if err := publisher.Close(); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(cfg.Kafka.Brokers, cfg.AMQP.URI)
	// Output:
	// *kafka.Publisher
	// *amqp.Publisher
	// [kafka-1:9092 kafka-2:9092] amqp://outbox:xxxxx@rabbit:5672/
}

// Everything that is wrong is said at once.
func ExampleConfig_Validate() {
	cfg := broker.Config{
		Kind: "rabbitmq",
		AMQP: broker.AMQP{
			URI:           "amqp://outbox:secret@rabbit:5672/",
			Topology:      broker.TopologyPubSub,
			DeclareQueues: new(true),
		},
	}
	fmt.Println(cfg.Validate())
	// Output:
	// broker: invalid config: kind: is "rabbitmq", allowed are "kafka" and "amqp"
	// broker: invalid config: amqp.declare_queues: true contradicts amqp.topology "pubsub", where consumers declare their queues: set it to false or leave it out
}

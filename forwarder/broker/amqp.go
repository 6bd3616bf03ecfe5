package broker

import (
	"cmp"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder/amqp"
)

// config reads the files of the TLS section.
func (a AMQP) config() (amqp.Config, error) {
	cfg := a.topology()
	if a.RoutingKeyMetadata != "" {
		cfg.RoutingKeyMetadata = a.RoutingKeyMetadata
	}
	cfg.ExchangeMetadata = a.ExchangeMetadata
	cfg.ExistingExchanges = a.ExistingExchanges
	cfg.DeclareQueues = a.declaresQueues()
	if a.QueueType != "" {
		cfg.AMQP.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: string(a.QueueType)}
	}
	if a.TLS == (TLS{}) {
		return cfg, nil // the client library's own, where the URI asks for it
	}
	var problems []*keyError
	if cfg.AMQP.Connection.TLSConfig, problems = a.TLS.config("amqp.tls"); len(problems) > 0 {
		return amqp.Config{}, problems[0]
	}
	return cfg, nil
}

func (a AMQP) topology() amqp.Config {
	uri := string(a.URI)
	switch a.Topology {
	case TopologyPubSub:
		return amqp.NewPubSubConfig(uri)
	case TopologyTopic:
		return amqp.NewTopicConfig(uri, a.oneExchange())
	case TopologyDirect:
		return amqp.NewDirectConfig(uri, a.oneExchange())
	case TopologyQueue:
	}
	return amqp.NewQueueConfig(uri)
}

// oneExchange is empty where the destination is the exchange. One in the metadata stands
// over it, and leaves the destination to be the routing key.
func (a AMQP) oneExchange() string { return cmp.Or(a.Exchange, a.ExchangeMetadata) }

func (a AMQP) declaresQueues() bool {
	if a.DeclareQueues != nil {
		return *a.DeclareQueues
	}
	return a.isQueues() && a.RoutingKeyMetadata == ""
}

func (a AMQP) isQueues() bool { return a.Topology == "" || a.Topology == TopologyQueue }

// routes says that the topology matches routing keys.
func (a AMQP) routes() bool { return a.Topology == TopologyTopic || a.Topology == TopologyDirect }

// check leaves out what is missing where the section is not used.
func (a AMQP) check(used bool) []*keyError {
	problems := a.checkNames()
	if len(problems) == 0 {
		problems = append(a.checkQueues(), a.checkExchanges()...)
	}
	problems = append(problems, a.TLS.check("amqp.tls", a.URI)...)
	if err := a.URI.check(); err != nil {
		return append(problems, &keyError{key: "amqp.uri", err: err})
	}
	if a.URI == "" {
		if used {
			problems = append(problems, keyErrorf("amqp.uri", "is empty, amqp://user:password@host:5672/vhost is needed"))
		}
		return problems
	}
	if len(problems) > 0 {
		a = AMQP{URI: a.URI} // said already
	}
	cfg, err := a.config()
	if err != nil {
		return append(problems, keyErrorf("amqp.tls", "%w", err))
	}
	return append(problems, named("amqp", cfg.Validate(), map[string]string{"AmqpURI": "amqp.uri"})...)
}

func (a AMQP) checkNames() (problems []*keyError) {
	if a.Topology != "" {
		problems = oneOf("amqp.topology", a.Topology, TopologyQueue, TopologyPubSub, TopologyTopic, TopologyDirect)
	}
	if a.QueueType != "" {
		problems = append(problems, oneOf("amqp.queue_type", a.QueueType, QueueTypeClassic, QueueTypeQuorum)...)
	}
	return problems
}

// checkQueues looks for keys about queues that contradict each other.
func (a AMQP) checkQueues() []*keyError {
	switch declares := a.DeclareQueues != nil && *a.DeclareQueues; {
	case declares && !a.isQueues():
		return []*keyError{keyErrorf("amqp.declare_queues",
			"true contradicts amqp.topology %q, where consumers declare their queues: set it to false or leave it out", a.Topology)}
	case declares && a.RoutingKeyMetadata != "":
		return []*keyError{keyErrorf("amqp.declare_queues",
			"true contradicts amqp.routing_key_metadata, where each message names its queue: leave one of them out")}
	case a.QueueType != "" && !a.declaresQueues():
		return []*keyError{keyErrorf("amqp.queue_type", "says how queues are declared, but none is: leave it out")}
	}
	return nil
}

// checkExchanges looks for keys about exchanges that contradict each other.
func (a AMQP) checkExchanges() (problems []*keyError) {
	if a.Exchange != "" && !a.routes() {
		problems = append(problems, keyErrorf("amqp.exchange", "needs amqp.topology %q or %q", TopologyTopic, TopologyDirect))
	}
	if a.RoutingKeyMetadata != "" && a.Topology == TopologyPubSub {
		problems = append(problems, keyErrorf("amqp.routing_key_metadata",
			"contradicts amqp.topology %q, which takes no notice of routing keys", a.Topology))
	}
	if a.ExchangeMetadata != "" && (a.isQueues() || a.Exchange != "") {
		problems = append(problems, keyErrorf("amqp.exchange_metadata",
			"needs amqp.topology %q, %q or %q, without amqp.exchange", TopologyPubSub, TopologyTopic, TopologyDirect))
	}
	if a.ExistingExchanges && a.isQueues() {
		problems = append(problems, keyErrorf("amqp.existing_exchanges",
			"contradicts amqp.topology %q, which has no exchanges", TopologyQueue))
	}
	return problems
}

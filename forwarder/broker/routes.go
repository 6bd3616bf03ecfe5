package broker

import (
	"errors"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/forwarder"
)

// Named is one of several brokers.
type Named struct {
	// Kind is KindKafka or KindAMQP. It has no default.
	Kind Kind `koanf:"kind" yaml:"kind"`
	// Kafka is used where Kind is KindKafka.
	Kafka Kafka `koanf:"kafka" yaml:"kafka"`
	// AMQP is used where Kind is KindAMQP.
	AMQP AMQP `koanf:"amqp" yaml:"amqp"`
}

func (n Named) config() Config { return Config{Kind: n.Kind, Kafka: n.Kafka, AMQP: n.AMQP} }

// brokerName fits into a key and into the name of an environment variable.
var brokerName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

const noBrokerName = "%s is no name for a broker, allowed are lower-case letters, digits and -"

// checkSeveral checks a Config with Brokers.
func (c Config) checkSeveral() []*keyError {
	var problems []*keyError
	if c.Kind != "" {
		problems = append(problems, keyErrorf("kind", "is set beside brokers: give each of them its kind, or leave brokers out"))
	}
	const stray = "is set beside brokers, in the file or the environment: move it to the one that it belongs to"
	if !reflect.ValueOf(c.Kafka).IsZero() {
		problems = append(problems, keyErrorf("kafka", stray))
	}
	if !reflect.ValueOf(c.AMQP).IsZero() {
		problems = append(problems, keyErrorf("amqp", stray))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Brokers)) {
		if !brokerName.MatchString(name) {
			problems = append(problems, keyErrorf("brokers", noBrokerName, shown(name)))
		}
		for _, problem := range c.Brokers[name].config().check() {
			problem.key = "brokers" + delimiter + name + delimiter + problem.key
			problems = append(problems, problem)
		}
	}
	return append(problems, c.checkRoutes()...)
}

// checkRoutes asks package forwarder, which checks routes to publishers.
func (c Config) checkRoutes() []*keyError {
	routes, problems := c.routes()
	if len(problems) > 0 {
		return problems
	}
	unopened := map[string]message.Publisher{}
	for name := range c.Brokers {
		unopened[name] = unopenedPublisher{}
	}
	several, err := forwarder.NewRoutes(unopened, routes)
	if err != nil {
		return named("routes", err, nil)
	}
	return named("destinations", several.Require(c.Destinations...), nil)
}

func (c Config) routes() (routes []forwarder.Route, problems []*keyError) {
	for i, text := range c.Routes {
		// A destination may hold any character, a broker's name no =.
		at := strings.LastIndex(text, "=")
		if at < 0 {
			problems = append(problems, keyErrorf("routes", "number %d of %d is not destination=broker", i+1, len(c.Routes)))
			continue
		}
		routes = append(routes, forwarder.Route{
			Destination: strings.TrimSpace(text[:at]),
			Broker:      strings.TrimSpace(text[at+1:]),
		})
	}
	return routes, problems
}

// openSeveral opens each broker. What was opened is closed where another one fails.
func openSeveral(c Config, open func(Config) (message.Publisher, error)) (message.Publisher, error) {
	publishers := map[string]message.Publisher{}
	closeAll := func(err error) error {
		for _, publisher := range publishers {
			err = errors.Join(err, publisher.Close())
		}
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Brokers)) {
		publisher, err := open(c.Brokers[name].config())
		if err != nil {
			return nil, closeAll(&keyError{key: "brokers" + delimiter + name, err: err})
		}
		publishers[name] = publisher
	}
	routes, _ := c.routes() // checked by Validate
	several, err := forwarder.NewRoutes(publishers, routes)
	if err != nil {
		return nil, closeAll(&keyError{key: "routes", err: err})
	}
	return several, nil
}

// unopenedPublisher stands for a broker while routes are checked.
type unopenedPublisher struct{}

func (unopenedPublisher) Publish(string, ...*message.Message) error {
	return errors.New("broker: not opened")
}
func (unopenedPublisher) Close() error { return nil }

package servers

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/internal/embedded"
)

// Kind says which servers an example runs on.
type Kind string

const (
	// Embedded is a throwaway Postgres and a Kafka within this process. The program
	// must call embedded.RunChildIfAsked first thing in main.
	Embedded Kind = "embedded"
	// Kafka is a real Postgres and a real Kafka, at the addresses that POSTGRES_DSN and
	// KAFKA_BROKERS give.
	Kafka Kind = "kafka"
	// AMQP is a real Postgres and a real RabbitMQ, at the addresses that POSTGRES_DSN and
	// AMQP_URI give.
	AMQP Kind = "amqp"
)

// ParseKind reads a Kind; the error names what is allowed.
func ParseKind(text string) (Kind, error) {
	allowed := []Kind{Embedded, Kafka, AMQP}
	if kind := Kind(text); slices.Contains(allowed, kind) {
		return kind, nil
	}
	return "", fmt.Errorf("unknown broker %q: allowed are %q, %q and %q", text, Embedded, Kafka, AMQP)
}

// closeTimeout bounds the removal of what a run has made on real servers.
const closeTimeout = 15 * time.Second

// Servers are a Postgres and a broker in use by one run of one example.
type Servers struct {
	Addresses

	// Description says in a line where the run takes place.
	Description string

	groups  []string // consumer groups of Kafka
	queues  []string // of RabbitMQ
	closers []func(context.Context) error
}

// Open starts the servers, or connects to them. name is the example's, as a part of
// the names of what it makes. Unless POSTGRES_DSN leads to the Postgres in use, it takes
// PGHOSTADDR and its like out of the environment of this process.
func Open(ctx context.Context, kind Kind, name string) (_ *Servers, err error) {
	run := name + "_" + randomName()
	s := &Servers{Addresses: Addresses{Schema: run, TopicSuffix: "_" + run}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(ctx))
		}
	}()
	if kind == Embedded || os.Getenv("POSTGRES_DSN") == "" {
		if err := unsetPostgresVariables(); err != nil {
			return nil, err
		}
	}
	if kind == Embedded {
		err = s.startEmbedded(ctx)
	} else {
		err = s.useReal(ctx, broker.Kind(kind))
	}
	if err != nil {
		return nil, err
	}
	if s.PostgresDSN, err = withSearchPath(s.PostgresDSN, s.Schema); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Servers) startEmbedded(ctx context.Context) error {
	kafka, err := embedded.StartKafka(ctx, embedded.KafkaConfig{})
	if err != nil {
		return fmt.Errorf("servers: %w", err)
	}
	s.onClose(func(context.Context) error { return kafka.Close() })
	database, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{})
	if err != nil {
		return fmt.Errorf("servers: %w", err)
	}
	s.onClose(func(context.Context) error { return database.Close() }) //nolint:contextcheck // it bounds itself
	s.PostgresDSN = database.DSN()
	s.Broker = broker.Config{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: kafka.Brokers()}}
	s.Description = "a throwaway Postgres and an in-process Kafka"
	return nil
}

func (s *Servers) useReal(ctx context.Context, kind broker.Kind) error {
	s.PostgresDSN = cmp.Or(os.Getenv("POSTGRES_DSN"), defaultPostgresDSN)
	if err := s.requirePostgres(ctx); err != nil {
		return err
	}
	s.Description = "Postgres at " + withoutPassword(s.PostgresDSN)
	s.Broker.Kind = kind
	switch kind {
	case broker.KindAMQP:
		s.Broker.AMQP.URI = broker.URI(cmp.Or(os.Getenv("AMQP_URI"), defaultAMQPURI))
		s.Broker.AMQP.Topology = broker.TopologyPubSub // each service has a queue of its own
		if err := s.requireRabbitMQ(); err != nil {
			return err
		}
		s.Description += " and RabbitMQ at " + s.rabbitMQHost()
	default:
		s.Broker.Kafka.Brokers = strings.Split(cmp.Or(os.Getenv("KAFKA_BROKERS"), defaultKafkaBrokers), ",")
		if err := s.requireKafka(ctx); err != nil {
			return err
		}
		s.Description += " and Kafka at " + strings.Join(s.Broker.Kafka.Brokers, ",")
	}
	// What is opened first is closed last: the groups and topics go before the schema.
	dsn, schema := s.PostgresDSN, s.Schema
	s.onClose(func(ctx context.Context) error { return dropSchema(ctx, dsn, schema) })
	return nil
}

// CreateTopics makes the run's own topic for each destination and returns once they
// can be written to.
func (s *Servers) CreateTopics(ctx context.Context, destinations ...string) error {
	if s.Broker.Kind == broker.KindAMQP {
		return s.createExchanges(destinations)
	}
	topics := make([]string, len(destinations))
	for i, destination := range destinations {
		topics[i] = s.Topic(destination)
	}
	return s.createTopics(ctx, topics)
}

// Close closes subscribers, removes what the run has made and stops the servers that it
// has started, also when ctx has ended. What else consumes or publishes must be closed
// before it.
func (s *Servers) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	errs := make([]error, 0, len(s.closers))
	for _, closeOne := range slices.Backward(s.closers) {
		errs = append(errs, closeOne(ctx))
	}
	s.closers = nil
	return errors.Join(errs...)
}

func (s *Servers) onClose(f func(context.Context) error) { s.closers = append(s.closers, f) }

func randomName() string {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // it never fails
	return hex.EncodeToString(random)
}

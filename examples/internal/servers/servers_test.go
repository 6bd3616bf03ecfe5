package servers_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/internal/embedded"
)

func TestMain(m *testing.M) {
	embedded.RunChildIfAsked()
	// go-metrics, which sarama uses, never ends its one goroutine.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// A run has a schema, topics and consumer groups of its own (or exchanges and queues),
// and nothing of them is left on real servers.
func TestRealServersAreLeftAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, kind := range []servers.Kind{servers.Kafka, servers.AMQP} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s, err := servers.Open(t.Context(), kind, "servers_test")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) }) // of what a failed test has left
			require.NoError(t, s.CreateTopics(t.Context(), "orders", "payments"))
			use(t, s)

			found := look(t, s)
			require.True(t, found.schema)
			require.Equal(t, []string{"orders" + s.TopicSuffix, "payments" + s.TopicSuffix}, found.topics)
			if kind == servers.Kafka {
				require.Equal(t, []string{"readers" + s.TopicSuffix}, found.readers)
			} else {
				require.Equal(t, []string{
					"orders.audit" + s.TopicSuffix, "orders.readers" + s.TopicSuffix, "payments.audit" + s.TopicSuffix,
				}, found.readers)
			}

			// A run that is interrupted cleans up too.
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			require.NoError(t, s.Close(ended))
			// A broker forgets topics a moment after it has said so.
			require.Eventually(t, func() bool {
				found := look(t, s)
				return !found.schema && len(found.topics) == 0 && len(found.readers) == 0
			}, 10*time.Second, 50*time.Millisecond)
		})
	}
}

func TestEmbeddedServers(t *testing.T) {
	t.Parallel()
	s, err := servers.Open(t.Context(), servers.Embedded, "servers_test")
	require.NoError(t, err)
	require.NoError(t, s.CreateTopics(t.Context(), "orders", "payments"))
	use(t, s)
	require.Len(t, look(t, s).topics, 2)
	require.NoError(t, s.Close(t.Context()))
}

// use writes through the database and the broker, and reads as a service.
func use(t *testing.T, s *servers.Servers) {
	t.Helper()
	db, err := sql.Open("postgres", s.PostgresDSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, s.Tables().Migrate(t.Context(), db))
	// search_path leads to the run's schema.
	_, err = db.ExecContext(t.Context(), `INSERT INTO outbox (id, destination, payload) VALUES ('1', 'orders', '')`)
	require.NoError(t, err)

	subscriber, err := s.NewSubscriber("readers", "orders", watermill.NopLogger{})
	require.NoError(t, err)
	publisher, err := broker.Open(s.Broker, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	inTopics, err := s.InTopics(publisher)
	require.NoError(t, err)
	require.NoError(t, inTopics.Publish("orders", message.NewMessage("1", nil)))
	require.NoError(t, inTopics.PublishBatch(t.Context(), []forwarder.Outgoing{
		{Destination: "orders", PartitionKey: "2", Message: message.NewMessage("2", nil)},
	})[0])

	// What was published before it read is not missed.
	messages, err := subscriber.Subscribe(t.Context(), s.Topic("orders"))
	require.NoError(t, err)
	ids := []string{}
	for range 2 {
		select {
		case msg := <-messages:
			msg.Ack()
			ids = append(ids, msg.UUID)
		case <-time.After(30 * time.Second):
			require.Fail(t, "a message is missed", "read: %v", ids)
		}
	}
	require.ElementsMatch(t, []string{"1", "2"}, ids)
	require.NoError(t, subscriber.Close())
}

// traces are what a run has left: topics or exchanges, consumer groups or queues.
type traces struct {
	schema          bool
	topics, readers []string
}

func look(t *testing.T, s *servers.Servers) (found traces) {
	t.Helper()
	db, err := sql.Open("postgres", s.PostgresDSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	if err := db.PingContext(t.Context()); err == nil {
		err = db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, s.Schema).Scan(&found.schema)
		require.NoError(t, err)
	}
	if s.Broker.Kind == broker.KindAMQP {
		lookIntoRabbitMQ(t, s, &found)
	} else {
		lookIntoKafka(t, s, &found)
	}
	return found
}

func lookIntoKafka(t *testing.T, s *servers.Servers, found *traces) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Broker.Kafka.Brokers...))
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(t.Context(), s.Topic("orders"), s.Topic("payments"))
	require.NoError(t, err)
	for _, topic := range topics.Sorted() {
		if topic.Err == nil {
			found.topics = append(found.topics, topic.Topic)
		}
	}
	groups, err := admin.ListGroups(t.Context())
	require.NoError(t, err)
	for _, group := range groups.Groups() {
		if group == "readers"+s.TopicSuffix {
			found.readers = append(found.readers, group)
		}
	}
}

// lookIntoRabbitMQ asks for each by its name: the protocol cannot list.
func lookIntoRabbitMQ(t *testing.T, s *servers.Servers, found *traces) {
	t.Helper()
	connection, err := amqp091.Dial(string(s.Broker.AMQP.URI))
	require.NoError(t, err)
	defer connection.Close()
	exists := func(ask func(channel *amqp091.Channel) error) bool {
		channel, err := connection.Channel() // a failure closes it
		require.NoError(t, err)
		return ask(channel) == nil
	}
	for _, destination := range []string{"orders", "payments"} {
		exchange := s.Topic(destination)
		if exists(func(channel *amqp091.Channel) error {
			return channel.ExchangeDeclarePassive(exchange, "fanout", true, false, false, false, nil)
		}) {
			found.topics = append(found.topics, exchange)
		}
		for _, queue := range []string{s.AuditQueue(destination), s.Queue(destination, "readers")} {
			if exists(func(channel *amqp091.Channel) error {
				_, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
				return err
			}) {
				found.readers = append(found.readers, queue)
			}
		}
	}
}

// What another process loads is what this one uses, the password too.
func TestBrokerVariables(t *testing.T) { //nolint:paralleltest // it sets variables
	for _, cfg := range []broker.Config{
		{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{"a:1", "b:2"}}},
		{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: "amqp://u:secret@a:1/v", Topology: broker.TopologyPubSub}},
	} {
		for _, variable := range (servers.Addresses{Broker: cfg}).BrokerVariables("SERVERS_TEST_") {
			name, value, _ := strings.Cut(variable, "=")
			t.Setenv(name, value)
		}
		loaded, err := broker.Load("", "SERVERS_TEST_")
		require.NoError(t, err)
		require.Equal(t, cfg, loaded)
	}
}

type oneByOne struct{ message.Publisher }

func TestInTopicsWithoutBatches(t *testing.T) {
	t.Parallel()
	_, err := servers.Addresses{}.InTopics(oneByOne{})
	require.ErrorContains(t, err, "forwarder.BatchPublisher")
}

func TestParseKind(t *testing.T) {
	t.Parallel()
	kind, err := servers.ParseKind("kafka")
	require.NoError(t, err)
	require.Equal(t, servers.Kafka, kind)
	_, err = servers.ParseKind("Kafka")
	require.EqualError(t, err, `unknown broker "Kafka": allowed are "embedded", "kafka" and "amqp"`)
}

func TestBothFormsOfDSN(t *testing.T) { //nolint:paralleltest // it sets a variable
	for _, dsn := range []string{
		"postgres://outbox:outbox@127.0.0.1:54329/outbox?sslmode=disable",
		"host=127.0.0.1 port=54329 user=outbox password=outbox dbname=outbox sslmode=disable",
	} {
		t.Setenv("POSTGRES_DSN", dsn)
		s, err := servers.Open(t.Context(), servers.Kafka, "servers_test")
		require.NoError(t, err)
		db, err := sql.Open("postgres", s.PostgresDSN)
		require.NoError(t, err)
		var path string
		require.NoError(t, db.QueryRowContext(t.Context(), `SHOW search_path`).Scan(&path))
		require.Equal(t, s.Schema, path)
		require.NoError(t, db.Close())
		require.NoError(t, s.Close(t.Context()))
	}
}

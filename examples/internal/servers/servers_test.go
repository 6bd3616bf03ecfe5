package servers_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/embedded"
)

func TestMain(m *testing.M) {
	embedded.RunChildIfAsked()
	goleak.VerifyTestMain(m)
}

// A run has a schema, topics and consumer groups of its own, and nothing of them is
// left on real servers.
func TestRealServersAreLeftAsTheyWere(t *testing.T) {
	t.Parallel()
	s, err := servers.Open(t.Context(), servers.Kafka, "servers_test")
	require.NoError(t, err)
	require.NoError(t, s.CreateTopics(t.Context(), "orders", "payments"))
	use(t, s)

	found := look(t, s)
	require.True(t, found.schema)
	require.Equal(t, []string{"orders" + s.TopicSuffix, "payments" + s.TopicSuffix}, found.topics)
	require.Equal(t, []string{"readers" + s.TopicSuffix}, found.groups)

	// A run that is interrupted cleans up too.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Close(ended))
	// A broker forgets topics a moment after it has said so.
	require.Eventually(t, func() bool {
		found := look(t, s)
		return !found.schema && len(found.topics) == 0 && len(found.groups) == 0
	}, 10*time.Second, 50*time.Millisecond)
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

// use writes through the database and the broker, and reads with a consumer group.
func use(t *testing.T, s *servers.Servers) {
	t.Helper()
	db, err := sql.Open("postgres", s.PostgresDSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, s.Tables().Migrate(t.Context(), db))
	// search_path leads to the run's schema.
	_, err = db.ExecContext(t.Context(), `INSERT INTO outbox (id, destination, payload) VALUES ('1', 'orders', '')`)
	require.NoError(t, err)

	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: s.Brokers}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	inTopics := s.InTopics(publisher)
	require.NoError(t, inTopics.Publish("orders", message.NewMessage("1", nil)))
	require.NoError(t, inTopics.PublishBatch(t.Context(), []forwarder.Outgoing{
		{Destination: "orders", PartitionKey: "2", Message: message.NewMessage("2", nil)},
	})[0])

	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.ConsumerGroup(s.Group("readers")),
		kgo.ConsumeTopics(s.Topic("orders")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer client.Close()
	for read := 0; read < 2; {
		fetches := client.PollFetches(t.Context())
		require.NoError(t, fetches.Err())
		read += fetches.NumRecords()
	}
}

type traces struct {
	schema         bool
	topics, groups []string
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
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...))
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
		if group == s.Group("readers") {
			found.groups = append(found.groups, group)
		}
	}
	return found
}

func TestParseKind(t *testing.T) {
	t.Parallel()
	kind, err := servers.ParseKind("kafka")
	require.NoError(t, err)
	require.Equal(t, servers.Kafka, kind)
	_, err = servers.ParseKind("Kafka")
	require.EqualError(t, err, `unknown broker "Kafka": allowed are "embedded" and "kafka"`)
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

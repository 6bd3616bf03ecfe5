package chaos_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/ledger"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/internal/testpgbouncer"
)

// suite is what all runs share.
type suite struct {
	servers   *servers
	proxies   proxies
	pgbouncer string // the address
}

// startSuite starts servers of its own, and has everything in this process take them for
// those of the tests.
func startSuite(t *testing.T) *suite {
	t.Helper()
	s := &suite{proxies: startProxies(t)}
	s.servers = startServers(t, s.proxies.port(t, forwarderKafka), s.proxies.port(t, consumerKafka))
	for name, value := range map[string]string{
		"POSTGRES_DSN":  s.servers.postgresDSN(),
		"AMQP_URI":      s.servers.amqpURI(),
		"KAFKA_BROKERS": s.servers.address(kafkaPort),
	} {
		t.Setenv(name, value)
	}
	s.pgbouncer = testpgbouncer.StartProxy(t, s.servers.address(pgbouncerPort))
	require.NoError(t, s.proxies.lead(forwarderKafka, s.servers.address(kafkaProxied)))
	require.NoError(t, s.proxies.lead(consumerKafka, s.servers.address(kafkaProxied+1)))
	require.NoError(t, s.proxies.lead(forwarderAMQP, s.servers.address(rabbitmqPort)))
	require.NoError(t, s.proxies.lead(consumerAMQP, s.servers.address(rabbitmqPort)))
	return s
}

// variant is in which of its ways a scenario runs.
type variant struct {
	broker   string
	replicas int
	pooled   bool // through PgBouncer
}

const (
	kafka    = "kafka"
	rabbitmq = "rabbitmq"
)

func (v variant) String() string {
	name := v.broker + "×" + string(rune('0'+v.replicas))
	if v.pooled {
		name += " pooled"
	}
	return name
}

// world is what a run happens in.
type world struct {
	*suite
	variant

	t      *testing.T
	config ledger.Config
	db     *testdb.DB // leads straight to the database
	// straightDSN leads to the database, or to PgBouncer, without a proxy.
	straightDSN string
	// note is beside the variant in the table.
	note string
}

type destinationBroker interface {
	ledger.Broker
	NewDestination(t *testing.T) string
}

// newWorld makes a database with these settings, and destinations.
func (s *suite) newWorld(t *testing.T, v variant, seed uint64, settings ...string) *world {
	t.Helper()
	db := testdb.NewDatabase(t, settings...)
	w := &world{suite: s, variant: v, t: t, db: db}
	w.useDatabase(db.DSN)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	broker := w.newBroker()
	w.config.Broker = broker
	for range 4 { // a queue has one consumer that takes one message at a time
		w.config.Destinations = append(w.config.Destinations, broker.NewDestination(t))
	}
	w.config.Seed = seed
	w.config.Replicas = v.replicas
	w.config.Writers, w.config.Pace = 4, 25*time.Millisecond
	w.config.Transactions = 200
	w.config.Patience = 90 * time.Second
	f := &w.config.Forwarder
	f.PublishTimeout, f.DatabaseTimeout = 2*time.Second, 2*time.Second
	f.RetryInitial, f.RetryMax = 50*time.Millisecond, time.Second
	f.MaxAttempts = 1 // what is no fault of a message spends none
	f.PollInterval = 100 * time.Millisecond
	return w
}

// useDatabase has all parties go to that database through proxies.
func (w *world) useDatabase(dsn string) {
	w.t.Helper()
	server := hostOf(w.t, dsn)
	if w.pooled {
		server = w.pgbouncer
	}
	for _, p := range postgresPairs {
		require.NoError(w.t, w.proxies.lead(p, server))
	}
	at := func(address string) string {
		dsn := withHost(w.t, dsn, address)
		if w.pooled {
			return testdb.WithSetting(w.t, dsn, "binary_parameters", "yes")
		}
		return dsn
	}
	forwarders := at(w.proxies[forwarderPostgres].Listen)
	w.straightDSN = at(server)
	w.config.DSN = dsn
	w.config.WriterDSN, w.config.ConsumerDSN = at(w.proxies[writerPostgres].Listen), at(w.proxies[consumerPostgres].Listen)
	w.config.ForwarderDSN = func(int) string { return forwarders }
	if !w.pooled {
		w.config.Forwarder.ListenDSN = forwarders
	}
}

// forwardersGoStraight has them meet no proxy, which would answer in their place.
func (w *world) forwardersGoStraight() {
	w.t.Helper()
	w.config.ForwarderDSN = func(int) string { return w.straightDSN }
	if !w.pooled {
		w.config.Forwarder.ListenDSN = w.straightDSN
	}
	switch broker := w.config.Broker.(type) {
	case *kafkaBroker:
		broker.Through([]string{w.servers.address(kafkaPort)}, []string{broker.consumers})
	case *rabbit:
		broker.Through(w.servers.amqpURI(), broker.consumers)
	}
}

func (w *world) newBroker() destinationBroker {
	w.t.Helper()
	if w.broker == kafka {
		consumers := w.proxies[consumerKafka].Listen
		return &kafkaBroker{
			Kafka:     ledger.NewKafka(w.t).Through([]string{w.proxies[forwarderKafka].Listen}, []string{consumers}),
			consumers: consumers,
		}
	}
	return w.newAMQP()
}

func (w *world) newAMQP() *rabbit {
	w.t.Helper()
	uri := w.servers.amqpURI()
	consumers := withHost(w.t, uri, w.proxies[consumerAMQP].Listen)
	return &rabbit{
		AMQP:      ledger.NewAMQP(w.t).Through(withHost(w.t, uri, w.proxies[forwarderAMQP].Listen), consumers),
		consumers: consumers,
	}
}

// pair returns the pair of forwarders, or of consumers, and the broker of this run.
func (w *world) pair(ofKafka pair) pair {
	return pair(strings.Replace(string(ofKafka), kafka, w.broker, 1))
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	require.NoError(t, err)
	return parsed.Host
}

func withHost(t *testing.T, address, host string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	require.NoError(t, err)
	parsed.Host = host
	return parsed.String()
}

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

// lane is what runs share that come one after the other. All lanes share the servers.
type lane struct {
	servers   *servers
	proxies   proxies
	pgbouncer string // the address
}

// lanesInAll is how many runs there are at a time: most of them wait most of the time.
const lanesInAll = 2

// startLanes starts servers of the suite's own, and has everything in this process take
// them for those of the tests.
func startLanes(t *testing.T) (all [lanesInAll]*lane) {
	t.Helper()
	var kafkaProxies []int
	for i := range all {
		all[i] = &lane{proxies: startProxies(t)}
		kafkaProxies = append(kafkaProxies, all[i].proxies.port(t, forwarderKafka), all[i].proxies.port(t, consumerKafka))
	}
	servers := startServers(t, kafkaProxies...)
	for name, value := range map[string]string{
		"POSTGRES_DSN":  servers.postgresDSN(),
		"AMQP_URI":      servers.amqpURI(),
		"KAFKA_BROKERS": servers.address(kafkaPort),
	} {
		t.Setenv(name, value)
	}
	for i, l := range all {
		l.servers = servers
		l.pgbouncer = testpgbouncer.StartProxy(t, servers.address(pgbouncerPort))
		require.NoError(t, l.proxies.lead(forwarderKafka, servers.address(kafkaProxied+2*i)))
		require.NoError(t, l.proxies.lead(consumerKafka, servers.address(kafkaProxied+2*i+1)))
		require.NoError(t, l.proxies.lead(forwarderAMQP, servers.address(rabbitmqPort)))
		require.NoError(t, l.proxies.lead(consumerAMQP, servers.address(rabbitmqPort)))
	}
	return all
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
	*lane
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
func (l *lane) newWorld(t *testing.T, v variant, seed uint64, settings ...string) *world {
	t.Helper()
	db := testdb.NewDatabase(t, settings...)
	w := &world{lane: l, variant: v, t: t, db: db}
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

package broker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/internal/testamqp"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// tlsFolder holds what a TLS section names.
type tlsFolder string

func (f tlsFolder) write(t *testing.T, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(string(f), name)
	require.NoError(t, os.WriteFile(file, content, 0o600))
	return file
}

func (f tlsFolder) writePair(t *testing.T, pair testamqp.Certificate) broker.TLS {
	t.Helper()
	return broker.TLS{CertFile: f.write(t, "client.pem", pair.PEM), KeyFile: f.write(t, "client-key.pem", pair.KeyPEM)}
}

func open(t *testing.T, uri string, section broker.TLS) message.Publisher {
	t.Helper()
	cfg := broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: broker.URI(uri), TLS: section}}
	publisher, err := broker.Open(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	return publisher
}

func send(t *testing.T, publisher message.Publisher) error {
	t.Helper()
	msg := message.NewMessage("probe", []byte("x"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	msg.SetContext(ctx)
	return publisher.Publish("probes", msg)
}

// requireUnavailable says that the broker counts as away, and that an operator reads why.
func requireUnavailable(t *testing.T, publisher message.Publisher, why string) {
	t.Helper()
	err := send(t, publisher)
	require.ErrorIs(t, err, forwarder.ErrUnavailable)
	require.NotErrorIs(t, err, forwarder.ErrRefused)
	require.ErrorContains(t, err, why)
}

// requireSaid is requireUnavailable for what the broker says after the handshake: a
// connection that is reset at once may swallow it, this time.
func requireSaid(t *testing.T, publisher message.Publisher, why string) {
	t.Helper()
	require.Eventually(t, func() bool {
		err := send(t, publisher)
		require.ErrorIs(t, err, forwarder.ErrUnavailable)
		return strings.Contains(err.Error(), why)
	}, patience, 5*time.Millisecond, why)
}

// forward runs a forwarder with some rows for the queue "orders".
func forward(t *testing.T, publisher message.Publisher) *testdb.DB {
	t.Helper()
	db := testdb.New(t)
	for n := range 5 {
		_, err := db.ExecContext(t.Context(),
			`INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload) VALUES ($1, 'orders', 'a', 'x')`, fmt.Sprint(n))
		require.NoError(t, err)
	}
	f, err := forwarder.New(db.DB, publisher, forwarder.Config{
		Schema: db.Schema, PollInterval: 2 * time.Millisecond, RetryInitial: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
	}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return db
}

func rows(t *testing.T, db *testdb.DB, where string) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()+` WHERE `+where).Scan(&n))
	return n
}

// requireArrived waits until the rows are in the queue, in their order, each once.
func requireArrived(t *testing.T, db *testdb.DB, uri string) {
	t.Helper()
	require.Eventually(t, func() bool { return rows(t, db, `true`) == 0 }, patience, 5*time.Millisecond)
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)
	for n := range 5 {
		delivery, ok, err := channel.Get("orders", true)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, fmt.Sprint(n), delivery.MessageId)
	}
	_, ok, err := channel.Get("orders", true)
	require.NoError(t, err)
	require.False(t, ok)
}

// A broker whose certificate is not to be trusted is away: nothing is spent, and when its
// certificate is right the rows go, without a restart.
func TestCertificateOfTheBroker(t *testing.T) {
	t.Parallel()
	trusted, stranger := testamqp.NewAuthority(t), testamqp.NewAuthority(t)
	rabbit := testamqp.StartTLSBroker(t, stranger.Issue(t, "127.0.0.1"), nil)
	folder := tlsFolder(t.TempDir())
	section := broker.TLS{CAFile: folder.write(t, "ca.pem", trusted.PEM)}
	file := yamlFile(t, fmt.Sprintf("kind: amqp\namqp: {uri: '%s', tls: {ca_file: '%s'}}\n", rabbit.TLSURI("127.0.0.1"), section.CAFile))
	cfg, err := broker.LoadFrom(file, "")
	require.NoError(t, err)
	require.Equal(t, section, cfg.AMQP.TLS)
	publisher := open(t, string(cfg.AMQP.URI), cfg.AMQP.TLS)

	requireUnavailable(t, publisher, "certificate signed by unknown authority")
	requireUnavailable(t, open(t, rabbit.TLSURI("127.0.0.1"), broker.TLS{}), "certificate signed by unknown authority")
	db := forward(t, publisher)

	rabbit.UseCertificate(t, trusted.Issue(t, "rabbit.example"))
	requireUnavailable(t, publisher, "cannot validate certificate for 127.0.0.1")
	requireUnavailable(t, open(t, rabbit.TLSURI("localhost"), section), "certificate is valid for rabbit.example, not localhost")
	named := section
	named.ServerName = "rabbit.example"
	require.NoError(t, send(t, open(t, rabbit.TLSURI("127.0.0.1"), named)))
	require.Equal(t, 5, rows(t, db, `attempts = 0 AND next_attempt_at IS NULL`))

	rabbit.UseCertificate(t, trusted.Issue(t, "127.0.0.1"))
	requireArrived(t, db, rabbit.URI())
}

// A broker that asks for a certificate of the client, and gets none or a stranger's, is
// away; a renewed certificate is used without a restart.
func TestCertificateOfTheClient(t *testing.T) {
	t.Parallel()
	servers, clients, stranger := testamqp.NewAuthority(t), testamqp.NewAuthority(t), testamqp.NewAuthority(t)
	rabbit := testamqp.StartTLSBroker(t, servers.Issue(t, "127.0.0.1"), clients)
	folder := tlsFolder(t.TempDir())
	caFile := folder.write(t, "ca.pem", servers.PEM)
	requireSaid(t, open(t, rabbit.TLSURI("127.0.0.1"), broker.TLS{CAFile: caFile}), "tls: certificate required")

	section := folder.writePair(t, stranger.Issue(t))
	section.CAFile = caFile
	publisher := open(t, rabbit.TLSURI("127.0.0.1"), section)
	requireSaid(t, publisher, "tls: unknown certificate authority")
	require.NoError(t, os.Remove(section.KeyFile))
	requireUnavailable(t, publisher, "client certificate: no such file")
	db := forward(t, publisher)
	requireUnavailable(t, publisher, "client certificate: no such file")
	require.Equal(t, 5, rows(t, db, `attempts = 0 AND next_attempt_at IS NULL`))

	folder.writePair(t, clients.Issue(t))
	requireArrived(t, db, rabbit.URI())
}

// What is wrong with the files shows before anything connects.
func TestTLSFilesAreChecked(t *testing.T) {
	t.Parallel()
	authority := testamqp.NewAuthority(t)
	folder := tlsFolder(t.TempDir())
	ca := folder.write(t, "ca.pem", authority.PEM)
	garbage := folder.write(t, "garbage.pem", []byte("no PEM"))
	pair := folder.writePair(t, authority.Issue(t))
	other := folder.write(t, "other-key.pem", authority.Issue(t).KeyPEM)
	absent := filepath.Join(string(folder), "absent.pem")
	const tls, plain = "amqps://h/", "amqp://h/"
	for name, test := range map[string]struct {
		uri     string
		section broker.TLS
		want    []string // none: valid
	}{
		"authorities":       {tls, broker.TLS{CAFile: ca}, nil},
		"both":              {tls, broker.TLS{CAFile: ca, CertFile: pair.CertFile, KeyFile: pair.KeyFile, ServerName: "rabbit"}, nil},
		"no authorities":    {tls, broker.TLS{CAFile: garbage}, []string{"amqp.tls.ca_file: there is no certificate in PEM form in it"}},
		"absent":            {tls, broker.TLS{CAFile: absent, CertFile: absent, KeyFile: absent}, []string{"amqp.tls.ca_file: no such file", "amqp.tls.cert_file: no such file", "amqp.tls.key_file: no such file"}},
		"no key":            {tls, broker.TLS{CertFile: pair.CertFile}, []string{"amqp.tls.key_file: is empty: cert_file and key_file are needed together"}},
		"no certificate":    {tls, broker.TLS{KeyFile: pair.KeyFile}, []string{"amqp.tls.cert_file: is empty"}},
		"two that differ":   {tls, broker.TLS{CertFile: pair.CertFile, KeyFile: other}, []string{"amqp.tls.cert_file: client certificate: tls: private key does not match"}},
		"no PEM":            {tls, broker.TLS{CertFile: garbage, KeyFile: garbage}, []string{"amqp.tls.cert_file: client certificate: tls: failed to find any PEM data"}},
		"plain":             {plain, broker.TLS{ServerName: "rabbit"}, []string{"amqp.tls: is set, but amqp.uri does not begin with amqps"}},
		"plain, and absent": {plain, broker.TLS{CAFile: absent}, []string{"amqp.tls.ca_file", "amqp.tls: is set, but amqp.uri"}},
	} {
		for _, kind := range []broker.Kind{broker.KindAMQP, broker.KindKafka} { // the one that is not used too
			err := broker.Config{
				Kind: kind, Kafka: broker.Kafka{Brokers: []string{"a:9092"}}, AMQP: broker.AMQP{URI: broker.URI(test.uri), TLS: test.section},
			}.Validate()
			if test.want == nil {
				require.NoError(t, err, name)
				continue
			}
			got := joined(t, err)
			require.Len(t, got, len(test.want), "%s: %v", name, err)
			for i, want := range test.want {
				require.ErrorContains(t, got[i], want, name)
			}
		}
	}
}

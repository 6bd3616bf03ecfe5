package kafka_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

func newPublisherAt(t *testing.T, listener testkafka.Listener, cfg kafka.Config) *kafka.Publisher {
	t.Helper()
	cfg.Brokers = []string{listener.Address(t)}
	publisher, err := kafka.NewPublisher(cfg, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, publisher.Close()) })
	return publisher
}

func plainMechanism(password string) sasl.Mechanism {
	return plain.Auth{User: testkafka.PlainUser, Pass: password}.AsMechanism()
}

func sha256(user testkafka.User) sasl.Mechanism {
	return scram.Auth{User: user.Name, Pass: user.Password}.AsSha256Mechanism()
}

func sha512(user testkafka.User) sasl.Mechanism {
	return scram.Auth{User: user.Name, Pass: user.Password}.AsSha512Mechanism()
}

// requireSoon waits for what was changed at the controller to reach the broker.
func requireSoon(t *testing.T, publisher *kafka.Publisher, msg forwarder.Outgoing) {
	t.Helper()
	var err error
	require.Eventually(t, func() bool {
		err = publish(t, publisher, msg)[0]
		return err == nil
	}, 30*time.Second, 50*time.Millisecond, "%v", &err)
}

func TestSecureListeners(t *testing.T) {
	t.Parallel()
	certificates := testkafka.BrokerCertificates(t)
	user := testkafka.NewUser(t)
	named := certificates.Config(t)
	named.ServerName = testkafka.ServerName
	for name, test := range map[string]struct {
		listener testkafka.Listener
		config   kafka.Config
	}{
		"TLS":                        {testkafka.TLS, kafka.Config{TLS: certificates.Config(t)}},
		"TLS, server name":           {testkafka.TLS, kafka.Config{TLS: named}},
		"TLS, client certificate":    {testkafka.MTLS, kafka.Config{TLS: certificates.ClientConfig(t)}},
		"PLAIN":                      {testkafka.SASL, kafka.Config{SASL: plainMechanism(testkafka.PlainPassword), SASLWithoutTLS: true}},
		"PLAIN with TLS":             {testkafka.SASLTLS, kafka.Config{SASL: plainMechanism(testkafka.PlainPassword), TLS: certificates.Config(t)}},
		"SCRAM-SHA-256":              {testkafka.SASL, kafka.Config{SASL: sha256(user)}},
		"SCRAM-SHA-512":              {testkafka.SASL, kafka.Config{SASL: sha512(user)}},
		"SCRAM-SHA-256 with TLS":     {testkafka.SASLTLS, kafka.Config{SASL: sha256(user), TLS: certificates.Config(t)}},
		"SCRAM-SHA-512 with TLS":     {testkafka.SASLTLS, kafka.Config{SASL: sha512(user), TLS: certificates.Config(t)}},
		"TLS and a name, with SCRAM": {testkafka.SASLTLS, kafka.Config{SASL: sha512(user), TLS: named, Compression: kafka.Zstd}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := testkafka.NewTopic(t, 1)
			user.Allow(t, topic, kmsg.ACLOperationWrite)
			requireSoon(t, newPublisherAt(t, test.listener, test.config), outgoing(topic, "a", "1", "x"))
			require.Equal(t, "1", idOf(t, testkafka.NewConsumer(t, topic).Take(t, 1)[0]))
		})
	}
}

// What keeps a client out is a broker that is away, and says why: nothing is blamed on
// the message.
func TestLockedOutClientSaysWhy(t *testing.T) {
	t.Parallel()
	certificates := testkafka.BrokerCertificates(t)
	topic := testkafka.NewTopic(t, 1)
	stranger := certificates.Config(t)
	stranger.RootCAs = x509.NewCertPool()
	misnamed := certificates.Config(t)
	misnamed.ServerName = "elsewhere.test"
	unknownUser := testkafka.User{Name: "nobody", Password: "hunter2"}
	for name, test := range map[string]struct {
		listener testkafka.Listener
		config   kafka.Config
		says     string
	}{
		"unknown authority":       {testkafka.TLS, kafka.Config{TLS: stranger}, "certificate signed by unknown authority"},
		"other name":              {testkafka.TLS, kafka.Config{TLS: misnamed}, "not elsewhere.test"},
		"no client certificate":   {testkafka.MTLS, kafka.Config{TLS: certificates.Config(t)}, "bad certificate"},
		"no TLS":                  {testkafka.TLS, kafka.Config{}, "plaintext connection speaking to a tls endpoint"},
		"TLS where there is none": {testkafka.SASL, kafka.Config{TLS: certificates.Config(t)}, "is TLS misconfigured"},
		"no SASL":                 {testkafka.SASL, kafka.Config{}, "is SASL missing"},
		"wrong password":          {testkafka.SASLTLS, kafka.Config{TLS: certificates.Config(t), SASL: plainMechanism("hunter2")}, "Invalid username or password"},
		"unknown user":            {testkafka.SASL, kafka.Config{SASL: sha512(unknownUser)}, "SASL_AUTHENTICATION_FAILED"},
		"mechanism":               {testkafka.SASLTLS, kafka.Config{TLS: certificates.Config(t), SASL: oauth.Auth{Token: "hunter2"}.AsMechanism()}, "UNSUPPORTED_SASL_MECHANISM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, err := range publish(t, newPublisherAt(t, test.listener, test.config), outgoing(topic, "a", "1", "x"), outgoing(topic, "b", "2", "x")) {
				require.ErrorIs(t, err, forwarder.ErrUnavailable)
				require.ErrorContains(t, err, test.says)
				require.NotContains(t, err.Error(), "hunter2")
			}
		})
	}
}

// countingPublisher counts the batches that fail.
type countingPublisher struct {
	*kafka.Publisher

	failed atomic.Int64
}

func (c *countingPublisher) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	results := c.Publisher.PublishBatch(ctx, msgs)
	if results[0] != nil {
		c.failed.Add(1)
	}
	return results
}

// The whole way: while the password is wrong, rows wait as they are; once it is right
// they go out, without a restart.
func TestWrongPasswordSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	topic := testkafka.NewTopic(t, 1)
	user := testkafka.NewUser(t)
	user.Allow(t, topic, kmsg.ACLOperationWrite)
	user.Password = "another" // than the broker knows

	publisher := &countingPublisher{Publisher: newPublisherAt(t, testkafka.SASLTLS, kafka.Config{
		SASL: sha512(user), TLS: testkafka.BrokerCertificates(t).Config(t),
	})}
	runForwarderWith(t, db, publisher)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES ('1', $1, 'x')`, topic)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return publisher.failed.Load() >= 2 }, 30*time.Second, 5*time.Millisecond)
	var attempts int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT attempts FROM `+db.Schema.Outbox()).Scan(&attempts))
	require.Zero(t, attempts)

	user.SetPassword(t, user.Password)
	requireEmptyOutbox(t, db)
	require.Equal(t, "1", idOf(t, testkafka.NewConsumer(t, topic).Take(t, 1)[0]))
}

// A topic that may not be written, or not even be seen, holds back nothing else.
func TestForbiddenTopicFailsAlone(t *testing.T) {
	t.Parallel()
	allowed, visible, hidden := testkafka.NewTopic(t, 1), testkafka.NewTopic(t, 1), testkafka.NewTopic(t, 1)
	user := testkafka.NewUser(t)
	user.Allow(t, allowed, kmsg.ACLOperationWrite)
	user.Allow(t, visible, kmsg.ACLOperationDescribe)
	publisher := newPublisherAt(t, testkafka.SASL, kafka.Config{SASL: sha256(user)})
	requireSoon(t, publisher, outgoing(allowed, "a", "1", "x"))

	msgs := []forwarder.Outgoing{
		outgoing(hidden, "a", "2", "x"), outgoing(visible, "a", "3", "x"), outgoing(allowed, "a", "4", "x"),
		outgoing(visible, "a", "5", "x"), outgoing(allowed, "a", "6", "x"),
	}
	results := publish(t, publisher, msgs...)
	for i, want := range []error{forwarder.ErrDestinationUnavailable, forwarder.ErrDestinationUnavailable, nil, forwarder.ErrKeyHeld, nil} {
		require.ErrorIs(t, results[i], want, "message %d", i)
	}
	require.ErrorContains(t, results[0], "TOPIC_AUTHORIZATION_FAILED")
	require.ErrorContains(t, results[1], "TOPIC_AUTHORIZATION_FAILED")

	for i, topic := range []string{hidden, visible} {
		user.Allow(t, topic, kmsg.ACLOperationWrite)
		requireSoon(t, publisher, msgs[i])
	}
	var got []string
	for _, record := range testkafka.NewConsumer(t, allowed, visible, hidden).Take(t, 5) {
		got = append(got, idOf(t, record))
	}
	require.ElementsMatch(t, []string{"1", "2", "3", "4", "6"}, got)
}

// Whoever may write no topic gets no producer id, and the client library would remember
// that for ever.
func TestUserWhoMayWriteNothing(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	user := testkafka.NewUser(t)
	user.Allow(t, topic, kmsg.ACLOperationDescribe)
	publisher := newPublisherAt(t, testkafka.SASL, kafka.Config{SASL: sha512(user)})
	require.Eventually(t, func() bool {
		err := publish(t, publisher, outgoing(topic, "a", "1", "x"))[0]
		require.Error(t, err)
		return errors.Is(err, forwarder.ErrUnavailable) && errors.Is(err, kerr.ClusterAuthorizationFailed)
	}, 30*time.Second, 50*time.Millisecond)
	user.Allow(t, topic, kmsg.ACLOperationWrite)
	requireSoon(t, publisher, outgoing(topic, "a", "1", "x"))
	require.Len(t, testkafka.NewConsumer(t, topic).Take(t, 1), 1)
}

func TestContradictionsInSecurity(t *testing.T) {
	t.Parallel()
	base := kafka.Config{Brokers: []string{"a:9092"}}
	for name, test := range map[string]struct {
		change func(*kafka.Config)
		want   string // empty: valid
	}{
		"PLAIN without TLS":        {func(c *kafka.Config) { c.SASL = plainMechanism("x") }, "SASL is PLAIN, which sends its secret as it is, and TLS is not set"},
		"a token without TLS":      {func(c *kafka.Config) { c.SASL = oauth.Auth{Token: "x"}.AsMechanism() }, "SASL is OAUTHBEARER"},
		"allowed":                  {func(c *kafka.Config) { c.SASL, c.SASLWithoutTLS = plainMechanism("x"), true }, ""},
		"with TLS":                 {func(c *kafka.Config) { c.SASL, c.TLS = plainMechanism("x"), &tls.Config{MinVersion: tls.VersionTLS13} }, ""},
		"SCRAM":                    {func(c *kafka.Config) { c.SASL = sha256(testkafka.User{}) }, ""},
		"nothing to be allowed":    {func(c *kafka.Config) { c.SASLWithoutTLS = true }, "SASLWithoutTLS is true, but SASL is not set"},
		"unknown compression":      {func(c *kafka.Config) { c.Compression = "rar" }, `Compression is "rar", allowed are "none", "gzip", "snappy", "lz4" and "zstd"`},
		"partitions":               {func(c *kafka.Config) { c.CreateTopics = &kafka.TopicCreation{Partitions: -1} }, "CreateTopics.Partitions is -1"},
		"replication":              {func(c *kafka.Config) { c.CreateTopics = &kafka.TopicCreation{ReplicationFactor: 40_000} }, "CreateTopics.ReplicationFactor is 40000"},
		"a setting without a name": {func(c *kafka.Config) { c.CreateTopics = &kafka.TopicCreation{Settings: map[string]string{"": "x"}} }, "CreateTopics.Settings has one without a name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := base
			test.change(&cfg)
			err := cfg.Validate()
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, kafka.ErrInvalidConfig)
			require.ErrorContains(t, err, test.want)
		})
	}
}

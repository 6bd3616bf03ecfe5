package broker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/broker"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

// openKafka opens what a file says, with an environment over it.
func openKafka(t *testing.T, yaml string, environment ...string) *kafka.Publisher {
	t.Helper()
	cfg, err := broker.LoadFrom(yamlFile(t, "kind: kafka\n"+yaml), prefix, environment...)
	require.NoError(t, err)
	opened, err := broker.Open(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close()) })
	publisher, ok := opened.(*kafka.Publisher)
	require.True(t, ok)
	return publisher
}

func publishTo(t *testing.T, publisher *kafka.Publisher, topic string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	msg := forwarder.Outgoing{Destination: topic, PartitionKey: "a", Message: message.NewMessage("1", nil)}
	return publisher.PublishBatch(ctx, []forwarder.Outgoing{msg})[0]
}

func TestKafkaWithTLSAndSASL(t *testing.T) {
	t.Parallel()
	certificates := testkafka.BrokerCertificates(t)
	user := testkafka.NewUser(t)
	for name, test := range map[string]struct {
		listener    testkafka.Listener
		yaml        string
		environment []string
	}{
		"PLAIN": {testkafka.SASL, "sasl: {mechanism: PLAIN, user: outbox, password: outbox-secret, without_tls: true}", nil},
		"SCRAM": {testkafka.SASL, "sasl: {mechanism: SCRAM-SHA-256, user: " + user.Name + "}", []string{"OUTBOX_BROKER_KAFKA_SASL_PASSWORD=" + user.Password}},
		"both": {
			testkafka.SASLTLS, "tls: {enabled: true, server_name: kafka.test, ca_file: '" + certificates.CA + "'}",
			[]string{
				"OUTBOX_BROKER_KAFKA_SASL_MECHANISM=SCRAM-SHA-512",
				"OUTBOX_BROKER_KAFKA_SASL_USER=" + user.Name, "OUTBOX_BROKER_KAFKA_SASL_PASSWORD=" + user.Password,
			},
		},
		"TLS": {testkafka.TLS, "tls: {enabled: true}\n  compression: zstd", []string{"OUTBOX_BROKER_KAFKA_TLS_CA_FILE=" + certificates.CA}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := testkafka.FutureTopic(t)
			user.Allow(t, topic, kmsg.ACLOperationWrite, kmsg.ACLOperationCreate)
			publisher := openKafka(t, "kafka:\n  brokers: '"+test.listener.Address(t)+"'\n  create_topics: {partitions: 2}\n  "+test.yaml, test.environment...)
			require.Eventually(t, func() bool { return publishTo(t, publisher, topic) == nil }, patience, 50*time.Millisecond)
			require.Len(t, testkafka.NewConsumer(t, topic).Take(t, 1), 1)
			require.Equal(t, 2, testkafka.Partitions(t, topic))
		})
	}
}

// A client's certificate that is missing or not the broker's authority's keeps the client
// out; once the files are renewed it gets in, without a restart.
func TestRenewedClientCertificate(t *testing.T) {
	t.Parallel()
	certificates := testkafka.BrokerCertificates(t)
	topic := testkafka.NewTopic(t, 1)
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	replace := func(file, by string) {
		t.Helper()
		content, err := os.ReadFile(by)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, content, 0o600))
	}
	writeStranger(t, cert, key)
	publisher := openKafka(t, "kafka:\n  brokers: '"+testkafka.MTLS.Address(t)+"'\n"+
		"  tls: {enabled: true, ca_file: '"+certificates.CA+"', cert_file: '"+cert+"', key_file: '"+key+"'}\n")

	err := publishTo(t, publisher, topic)
	require.ErrorIs(t, err, forwarder.ErrUnavailable)
	require.ErrorContains(t, err, "tls:")
	require.NoError(t, os.Remove(cert))
	err = publishTo(t, publisher, topic)
	require.ErrorIs(t, err, forwarder.ErrUnavailable)
	require.ErrorContains(t, err, "client certificate: no such file or directory")

	replace(cert, certificates.ClientCert)
	replace(key, certificates.ClientKey)
	require.NoError(t, publishTo(t, publisher, topic))
	require.Len(t, testkafka.NewConsumer(t, topic).Take(t, 1), 1)
}

func TestKafkaSectionsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	writeStranger(t, cert, key)
	otherCert, otherKey := filepath.Join(folder, "other-cert.pem"), filepath.Join(folder, "other-key.pem")
	writeStranger(t, otherCert, otherKey)
	empty := filepath.Join(folder, "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, test := range map[string]struct {
		yaml string
		want []string // after "broker: invalid config: "; none: valid
	}{
		"TLS with the system's authorities": {"tls: {enabled: true}", nil},
		"certificate":                       {"tls: {enabled: true, cert_file: '" + cert + "', key_file: '" + key + "'}", nil},
		"TLS off, with a CA":                {"tls: {ca_file: '" + cert + "'}", []string{"kafka.tls.enabled: is not true, but other keys of the section are set"}},
		"TLS off, with a name":              {"tls: {enabled: false, server_name: x}", []string{"kafka.tls.enabled (F:3): is not true, but other keys"}},
		"no CA file":                        {"tls: {enabled: true, ca_file: '/nowhere/ca.pem'}", []string{"kafka.tls.ca_file (F:3): no such file or directory"}},
		"empty CA file":                     {"tls: {enabled: true, ca_file: '" + empty + "'}", []string{"kafka.tls.ca_file (F:3): there is no certificate in PEM form in it"}},
		"key without certificate":           {"tls: {enabled: true, key_file: '" + key + "'}", []string{"kafka.tls.cert_file: is empty: cert_file and key_file are needed together"}},
		"certificate without key":           {"tls: {enabled: true, cert_file: '" + cert + "'}", []string{"kafka.tls.key_file: is empty: cert_file and key_file are needed together"}},
		"no certificate file":               {"tls: {enabled: true, cert_file: '/nowhere/c', key_file: '" + key + "'}", []string{"kafka.tls.cert_file (F:3): no such file or directory"}},
		"no key file":                       {"tls: {enabled: true, key_file: '/nowhere/c', cert_file: '" + cert + "'}", []string{"kafka.tls.key_file (F:3): no such file or directory"}},
		"another's key":                     {"tls: {enabled: true, cert_file: '" + cert + "', key_file: '" + otherKey + "'}", []string{"kafka.tls.cert_file (F:3): client certificate: tls: private key does not match public key"}},
		"all of it":                         {"tls: {enabled: true, ca_file: '" + empty + "', cert_file: '" + empty + "', key_file: '" + empty + "'}", []string{"kafka.tls.ca_file", "kafka.tls.cert_file"}},

		"PLAIN in the open":     {"sasl: {mechanism: PLAIN, user: u, password: p}", []string{"kafka.tls.enabled: is not true, and kafka.sasl.mechanism PLAIN would send the password"}},
		"PLAIN, TLS unreadable": {"sasl: {mechanism: PLAIN, user: u, password: p}\n  tls: {enabled: perhaps}", []string{"kafka.tls.enabled (F:4): is text, true or false is needed"}},
		"PLAIN, no TLS section": {"sasl: {mechanism: PLAIN, user: u, password: p}\n  tls: true", []string{"kafka.tls (F:4): is true or false, a section of keys is needed"}},
		"PLAIN, allowed":        {"sasl: {mechanism: PLAIN, user: u, password: p, without_tls: true}", nil},
		"PLAIN with TLS":        {"sasl: {mechanism: PLAIN, user: u, password: p}\n  tls: {enabled: true}", nil},
		"SCRAM":                 {"sasl: {mechanism: SCRAM-SHA-512, user: u, password: p}", nil},
		"no mechanism":          {"sasl: {user: u, password: p}", []string{`kafka.sasl.mechanism: is "", allowed are "PLAIN", "SCRAM-SHA-256" and "SCRAM-SHA-512"`}},
		"only allowed":          {"sasl: {without_tls: true}", []string{"kafka.sasl.mechanism", "kafka.sasl.user", "kafka.sasl.password"}},
		"mechanism":             {"sasl: {mechanism: plain, user: u, password: p}", []string{`kafka.sasl.mechanism (F:3): is "plain", allowed are`}},
		"nobody":                {"sasl: {mechanism: SCRAM-SHA-256}", []string{"kafka.sasl.user: is empty", "kafka.sasl.password: is empty"}},
		"a number":              {"sasl: {mechanism: SCRAM-SHA-256, user: u, password: 1234}", []string{"kafka.sasl.password (F:3): is a number, text is needed"}},
		"masked":                {"sasl: {mechanism: SCRAM-SHA-256, user: u, password: xxxxx}", []string{"kafka.sasl.password (F:3): the password is masked"}},
		"username":              {"sasl: {mechanism: SCRAM-SHA-256, username: u, password: p}", []string{"kafka.sasl.username (F:3): unknown key, did you mean kafka.sasl.user?", "kafka.sasl.user: is empty"}},

		"compression":       {"compression: rar", []string{`kafka.compression (F:3): is "rar", allowed are "none", "gzip", "snappy", "lz4" and "zstd"`}},
		"creation":          {"create_topics: {partitions: -1, replication_factor: 40000}", []string{"kafka.create_topics.partitions (F:3): kafka: invalid config: CreateTopics.Partitions is -1", "kafka.create_topics.replication_factor (F:3): kafka: invalid config: CreateTopics.ReplicationFactor is 40000"}},
		"creation's":        {"create_topics: {settings: [a, =b, a=b, a=c]}", []string{"kafka.create_topics.settings (F:3): number 1 of 4 is not name=value", "kafka.create_topics.settings (F:3): number 2 of 4", "kafka.create_topics.settings (F:3): number 4 of 4 is given twice"}},
		"broker's defaults": {"create_topics: {partitions: 0}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := yamlFile(t, "kind: kafka\nkafka:\n  "+test.yaml+"\n  brokers: a:9092\n")
			_, err := broker.LoadFrom(file, "")
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			got := joined(t, err)
			require.Len(t, got, len(test.want), "%v", err)
			for i, want := range test.want {
				require.ErrorIs(t, got[i], broker.ErrInvalidConfig)
				require.True(t, strings.HasPrefix(strings.ReplaceAll(got[i].Error(), file, "F"), "broker: invalid config: "+want), "%v\n%v", want, got[i])
			}
		})
	}
}

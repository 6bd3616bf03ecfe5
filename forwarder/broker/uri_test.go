package broker_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/watermill-outbox/outbox/forwarder/broker"
)

const secret = "hunter2"

// requireMasked looks for the secret as text, and as %x and %d print it.
func requireMasked(t *testing.T, text string) {
	t.Helper()
	require.NotContains(t, text, secret)
	require.NotContains(t, strings.ToLower(text), hex.EncodeToString([]byte(secret)))
	require.NotContains(t, text, "104 117 110 116")
}

func TestURI(t *testing.T) {
	t.Parallel()
	for uri, want := range map[broker.URI]string{
		"":                                   "",
		"amqp://outbox:hunter2@h:5672/vhost": "amqp://outbox:xxxxx@h:5672/vhost",
		"amqps://outbox:hun%2Fter2@h/%2F":    "amqps://outbox:xxxxx@h/%2F",
		"amqp://outbox@h":                    "amqp://outbox@h",
		"amqp://h/":                          "amqp://h/",
		"amqp://:hunter2@h":                  "amqp://:xxxxx@h",
		"amqp://u:p@hunter2@h":               "amqp://u:xxxxx@h",
		"amqp://h/?password=hunter2":         "amqp://h/?xxxxx",
		// What may be anything is masked as a whole.
		"amqp://u:hunter2/x@h":    "xxxxx",
		"amqp://u:12#hunter2@h":   "xxxxx",
		"amqp://u:12#hunter2":     "xxxxx",
		"amqp://u:12?hunter2@h":   "xxxxx",
		"amqp://u:12/hunter2@h":   "xxxxx",
		"amqp://u%3Ahunter2@h":    "xxxxx",
		"amqp:u:hunter2@h":        "xxxxx",
		"amqp:/u:hunter2@h":       "xxxxx",
		"u:hunter2@h":             "xxxxx",
		"//u:hunter2@h":           "xxxxx",
		"hunter2":                 "xxxxx",
		"amqp://u:%hunter2@h":     "xxxxx",
		"amqp://u:hunter2@h\n":    "xxxxx",
		"hunter2://u:p@h":         "xxxxx",
		"amqp://u:hun ter2@h:x/y": "xxxxx",
	} {
		require.Equal(t, want, uri.String())
		require.Equal(t, want, fmt.Sprint(uri))
		require.Equal(t, fmt.Sprintf("%q", want), fmt.Sprintf("%q", uri))
		requireMasked(t, fmt.Sprintf("%d %x", uri, uri))
	}
}

func TestPrintedConfigIsMasked(t *testing.T) {
	t.Parallel()
	for _, uri := range []broker.URI{"amqp://outbox:hunter2@rabbit:5672/", "amqp://outbox:hunter2/@rabbit", "amqp://outbox:%hunter2@rabbit"} {
		cfg := broker.Config{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: uri}}
		cfg.Kafka.SASL = broker.KafkaSASL{Mechanism: broker.SASLPlain, User: "outbox", Password: "hunter2"}
		for _, value := range []any{
			cfg.Kafka, &cfg.Kafka, cfg.Kafka.SASL, cfg.Kafka.SASL.Password,
			struct{ Kafka *broker.Kafka }{&cfg.Kafka},
			struct{ SASL *broker.KafkaSASL }{&cfg.Kafka.SASL},
			struct{ Password *broker.Secret }{&cfg.Kafka.SASL.Password},
			cfg, &cfg, cfg.AMQP, cfg.AMQP.URI,
			[]broker.Config{cfg},
			map[string]any{"broker": cfg},
			struct{ Broker *broker.Config }{&cfg},
			struct{ AMQP *broker.AMQP }{&cfg.AMQP},
			struct{ URI *broker.URI }{&cfg.AMQP.URI},
			struct{ Nested *struct{ broker.Config } }{},
		} {
			for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%o", "%c", "%U", "%40s", "%!"} {
				requireMasked(t, fmt.Sprintf(format, value))
			}
			requireMasked(t, fmt.Sprint(value))
			encoded, err := json.Marshal(value)
			require.NoError(t, err)
			requireMasked(t, string(encoded))
			encoded, err = yaml.Marshal(value)
			require.NoError(t, err)
			requireMasked(t, string(encoded))

			var logs bytes.Buffer
			slog.New(slog.NewTextHandler(&logs, nil)).Info("opened", "broker", value)
			slog.New(slog.NewJSONHandler(&logs, nil)).Info("opened", "broker", value)
			watermill.NewStdLoggerWithOut(&logs, true, true).Info("opened", watermill.LogFields{"broker": value})
			watermill.NewSlogLogger(slog.New(slog.NewJSONHandler(&logs, nil))).With(watermill.LogFields{"broker": value}).Info("opened", nil)
			require.Contains(t, logs.String(), "opened")
			requireMasked(t, logs.String())
		}
		require.Contains(t, string(cfg.AMQP.URI), secret, "the real one")
		require.Equal(t, slog.KindString, cfg.AMQP.URI.LogValue().Kind())
		require.Equal(t, secret, string(cfg.Kafka.SASL.Password), "the real one")
		require.Equal(t, slog.KindString, cfg.Kafka.SASL.Password.LogValue().Kind())
		require.Contains(t, fmt.Sprintf("%+v", cfg), "User:outbox Password:xxxxx")
	}
}

// What was printed is not taken for a configuration.
func TestPrintedConfigDoesNotLoad(t *testing.T) {
	t.Parallel()
	printed, err := yaml.Marshal(broker.Config{
		Kind:  broker.KindAMQP,
		Kafka: broker.Kafka{SASL: broker.KafkaSASL{Mechanism: broker.SASLScramSHA256, User: "outbox", Password: "hunter2"}},
		AMQP:  broker.AMQP{URI: "amqp://outbox:hunter2@rabbit:5672/"},
	})
	require.NoError(t, err)
	_, err = broker.LoadFrom(yamlFile(t, string(printed)), "")
	require.Len(t, joined(t, err), 2)
	require.ErrorContains(t, err, "kafka.sasl.password")
	require.ErrorContains(t, err, "amqp.uri")
	require.ErrorContains(t, joined(t, err)[0], "the password is masked")
	require.ErrorContains(t, joined(t, err)[1], "the password is masked")
}

// Wherever the address was put by mistake, no error repeats the password.
func TestErrorsDoNotRepeatThePassword(t *testing.T) {
	t.Parallel()
	uris := []string{
		"amqp://u:hunter2@h/", "amqp://u:hunter2/@h/", "amqp://u:%hunter2@h/", "amqp://u:hunter2 @h", "u:hunter2@h",
		"http://u:hunter2@h/", "amqp:u:hunter2@h", "amqp://u:hunter2@h:x/", "amqp://u:hunter2@h:99999999999/", "*hunter2", "&hunter2 x",
	}
	variables := []string{
		"KIND", "KAFKA_BROKERS", "KAFKA_CLIENT_ID", "KAFKA_PARTITIONER", "KAFKA_MAX_MESSAGE_BYTES", "AMQP_URI", "AMQP_TOPOLOGY", "AMQP_DECLARE_QUEUES", "TYPO",
		"AMQP_QUEUE_TYPE", "AMQP_EXCHANGE", "AMQP_EXCHANGE_METADATA", "AMQP_ROUTING_KEY_METADATA", "AMQP_EXISTING_EXCHANGES",
		"AMQP_TLS_CA_FILE", "AMQP_TLS_CERT_FILE", "AMQP_TLS_KEY_FILE", "AMQP_TLS_SERVER_NAME",
		"KAFKA_COMPRESSION", "KAFKA_TLS_ENABLED", "KAFKA_TLS_CA_FILE", "KAFKA_TLS_CERT_FILE", "KAFKA_TLS_KEY_FILE", "KAFKA_TLS_SERVER_NAME", "KAFKA_SASL_MECHANISM",
		"KAFKA_SASL_USER", "KAFKA_SASL_PASSWORD", "KAFKA_SASL_WITHOUT_TLS", "KAFKA_CREATE_TOPICS_PARTITIONS", "KAFKA_CREATE_TOPICS_REPLICATION_FACTOR", "KAFKA_CREATE_TOPICS_SETTINGS",
	}
	files := []string{
		"URI", "kind: URI", "kind: [URI]", "amqp: URI", "amqp: [URI]", "amqp: {URI}", "amqp:\n  uri:URI", "amqp:\n  URI: x", "URI: x", "'URI'", "'URI': x",
		"amqp:\n  uri: [URI]", "amqp:\n  uri: {a: URI}", "amqp:\n  uri: URI\n uri: URI", "amqp:\n  'URI': x\n  'URI': y", "amqp:\n  uri: !URI", "amqp:\n  uri: !!int URI",
		"kafka: {brokers: 'URI'}", "kafka: {brokers: ['URI']}", "kafka: {max_message_bytes: 'URI'}", "kafka: {partitioner: 'URI'}", "amqp: {topology: 'URI'}",
		"amqp: {queue_type: 'URI'}", "amqp: {tls: 'URI'}", "amqp: {tls: ['URI']}", "amqp: {tls: {'URI': x}}", "amqp: {uri: 'URI', tls: {ca_file: 'URI'}}",
		"amqp: {uri: 'URI', tls: {cert_file: 'URI', key_file: 'URI'}}", "amqp: {uri: 'URI', tls: {cert_file: 'URI'}}",
		"amqp: {declare_queues: 'URI'}", "amqp: {uri: 'URI', topology: pubsub, declare_queues: true}", "amqp: {uri: 'URI'\n", "amqp: {uri: \"URI}\n", "kind: amqp\namqp: {uri: 'URI'}",
		"kafka: {compression: 'URI'}", "kafka: {tls: 'URI'}", "kafka: {tls: {enabled: true, ca_file: 'URI', cert_file: 'URI', key_file: 'URI'}}",
		"kafka: {sasl: 'URI'}", "kafka: {sasl: {mechanism: 'URI', user: 'URI', password: ['URI'], without_tls: 'URI'}}", "kafka: {sasl: {mechanism: PLAIN, password: 'URI'}}",
		"kafka: {create_topics: 'URI'}", "kafka: {create_topics: {partitions: 'URI', settings: ['URI']}}", "kafka: {create_topics: {settings: ['a=URI', 'a=URI']}}",
		"? [URI]\n: x", "%URI\n---\n", "--- URI\n--- URI\n", "- URI",
	}
	check := func(err error) {
		if err == nil {
			return
		}
		requireMasked(t, err.Error())
		requireMasked(t, fmt.Sprintf("%+v %#v", errors.Unwrap(err), err.Error()))
	}
	for _, uri := range uris {
		for _, variable := range variables {
			_, err := broker.LoadFrom("", prefix, prefix+variable+"="+uri)
			check(err)
		}
		for _, file := range files {
			_, err := broker.LoadFrom(yamlFile(t, strings.ReplaceAll(file, "URI", uri)), "")
			check(err)
		}
		for _, cfg := range []broker.Config{
			{Kind: broker.Kind(uri)},
			{Kind: broker.KindAMQP, AMQP: broker.AMQP{URI: broker.URI(uri)}},
			{Kind: broker.KindKafka, Kafka: broker.Kafka{Brokers: []string{uri}}},
		} {
			check(cfg.Validate())
			publisher, err := broker.Open(cfg, nil)
			check(err)
			if err == nil {
				require.NoError(t, publisher.Close())
			}
		}
	}
}

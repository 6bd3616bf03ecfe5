package testkafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Listener is an address of the test broker that asks for more than Brokers do.
type Listener string

const (
	// TLS takes any client that speaks TLS.
	TLS Listener = "TLS"
	// MTLS takes clients with a certificate of the broker's authority.
	MTLS Listener = "MTLS"
	// SASL takes clients that authenticate, without TLS.
	SASL Listener = "SASL"
	// SASLTLS takes clients that authenticate, with TLS.
	SASLTLS Listener = "SASLTLS"
)

// The user of PLAIN, who may do everything. Users of SCRAM are made with NewUser.
const (
	PlainUser     = "outbox"
	PlainPassword = "outbox-secret"
)

// ServerName is a name in the broker's certificate, beside its address.
const ServerName = "kafka.test"

// Address returns the address of a listener. It fails the test where the broker does
// not have it, as one that was not started by "make services".
func (l Listener) Address(t *testing.T) string {
	t.Helper()
	for listener := range strings.SplitSeq(brokerSetting(t, "advertised.listeners"), ",") {
		if address, ok := strings.CutPrefix(listener, string(l)+"://"); ok {
			return address
		}
	}
	require.FailNowf(t, "no such listener",
		"the Kafka at %v has none that is named %s: \"make services\" starts one that has", Brokers(), l)
	return ""
}

// Certificates are files in PEM format.
type Certificates struct{ CA, ClientCert, ClientKey string }

// BrokerCertificates are those of the broker's authority, and of a client that MTLS
// takes.
func BrokerCertificates(t *testing.T) Certificates {
	t.Helper()
	ca := brokerSetting(t, "ssl.truststore.location")
	require.FileExists(t, ca, "the broker that \"make services\" starts runs on this machine")
	return Certificates{
		CA:         ca,
		ClientCert: filepath.Join(filepath.Dir(ca), "client-cert.pem"),
		ClientKey:  filepath.Join(filepath.Dir(ca), "client-key.pem"),
	}
}

// Config trusts the authority and has no certificate of its own.
func (c Certificates) Config(t *testing.T) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(c.CA)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// ClientConfig trusts the authority and has the client's certificate.
func (c Certificates) ClientConfig(t *testing.T) *tls.Config {
	t.Helper()
	config := c.Config(t)
	certificate, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	require.NoError(t, err)
	config.Certificates = []tls.Certificate{certificate}
	return config
}

func brokerSetting(t *testing.T, name string) string {
	t.Helper()
	client := newClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	metadata, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	require.NoErrorf(t, err, "no Kafka at %v: run \"make services\", or set KAFKA_BROKERS", Brokers())
	return setting(t, client, kmsg.ConfigResourceTypeBroker, fmt.Sprint(metadata.Brokers[0].NodeID), name)
}

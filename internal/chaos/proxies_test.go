package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// pair is who connects to what.
type pair string

const (
	writerPostgres    pair = "writer-postgres"
	forwarderPostgres pair = "forwarder-postgres"
	consumerPostgres  pair = "consumer-postgres"
	forwarderKafka    pair = "forwarder-kafka"
	consumerKafka     pair = "consumer-kafka"
	forwarderAMQP     pair = "forwarder-rabbitmq"
	consumerAMQP      pair = "consumer-rabbitmq"
)

var (
	postgresPairs = []pair{writerPostgres, forwarderPostgres, consumerPostgres}
	allPairs      = append([]pair{forwarderKafka, consumerKafka, forwarderAMQP, consumerAMQP}, postgresPairs...)
)

// proxies has a proxy for each pair.
type proxies map[pair]*toxiproxy.Proxy

// startProxies listens; where they lead to is said later. They are stopped after the
// test, with all connections.
func startProxies(t *testing.T) proxies {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // some toxics log elsewhere
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	all := proxies{}
	for _, p := range allPairs {
		proxy := toxiproxy.NewProxy(server, string(p), "127.0.0.1:0", "127.0.0.1:1")
		require.NoError(t, proxy.Start())
		t.Cleanup(proxy.Stop)
		all[p] = proxy
	}
	return all
}

func (ps proxies) port(t *testing.T, p pair) int {
	t.Helper()
	_, text, err := net.SplitHostPort(ps[p].Listen)
	require.NoError(t, err)
	port, err := strconv.Atoi(text)
	require.NoError(t, err)
	return port
}

// lead says where a proxy leads to, and ends what goes elsewhere.
func (ps proxies) lead(p pair, upstream string) error {
	proxy := ps[p]
	return proxy.Update(&toxiproxy.Proxy{Listen: proxy.Listen, Upstream: upstream, Enabled: true})
}

// cut refuses connections, and ends those that are there, until mend.
func (ps proxies) cut(p pair) { ps[p].Stop() }

func (ps proxies) mend(p pair) error { return ps[p].Start() }

// toxic is what is done to all that flows in a direction.
type toxic struct {
	Type       string         `json:"type"`
	Stream     string         `json:"stream"`
	Attributes map[string]any `json:"attributes"`
}

// Directions: to the server, and back.
const (
	up   = "upstream"
	down = "downstream"
)

// add adds toxics to a proxy, until the function that it returns is called.
func (ps proxies) add(p pair, toxics ...toxic) (cure func(ctx context.Context) error, err error) {
	var names []string
	for _, t := range toxics {
		encoded, err := json.Marshal(t)
		if err != nil {
			return nil, fmt.Errorf("toxic %s: %w", t.Type, err)
		}
		added, err := ps[p].Toxics.AddToxicJson(strings.NewReader(string(encoded)))
		if err != nil {
			return nil, fmt.Errorf("toxic %s: %w", t.Type, err)
		}
		names = append(names, added.Name)
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, name := range names {
			errs = append(errs, ps[p].Toxics.RemoveToxic(ctx, name))
		}
		return errors.Join(errs...)
	}, nil
}

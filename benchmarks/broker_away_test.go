package benchmarks_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq" // the driver "postgres"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/schema"
)

var (
	waiting = flag.Int("waiting", 1_000_000, "rows that wait for the broker that is down")
	flowing = flag.Int("flowing", 200_000, "rows that are forwarded to the other one in each round")
	rounds  = flag.Int("rounds", 15, "rounds, each with both sides")
)

// BenchmarkBrokerAway compares the rate at which rows flow to one broker while a million
// wait for another that is down, and while none do. The sides take turns. Run it with
//
//	go test -run '^$' -bench BrokerAway -benchtime 1x -timeout 30m
func BenchmarkBrokerAway(b *testing.B) {
	for b.Loop() {
		with, without := newSide(b, *waiting), newSide(b, 0)
		var ratios, ratesWith, ratesWithout []float64
		for round := range *rounds {
			sides := []*side{with, without}
			if round%2 == 1 {
				slices.Reverse(sides)
			}
			for _, s := range sides {
				s.rate = s.drain(b, *flowing)
			}
			ratesWith, ratesWithout = append(ratesWith, with.rate), append(ratesWithout, without.rate)
			ratios = append(ratios, with.rate/without.rate)
		}
		b.Logf("ratios: %.2f", ratios)
		b.ReportMetric(median(ratesWith), "waiting_rows/s")
		b.ReportMetric(median(ratesWithout), "alone_rows/s")
		b.ReportMetric(median(ratios), "ratio")
		b.ReportMetric(slices.Min(ratios), "least_ratio")
		require.Equal(b, *waiting, with.count(b), "what waits is still there")
		require.Zero(b, without.count(b))
	}
}

func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }

// side is an outbox of its own with a forwarder.
type side struct {
	db     *sql.DB
	schema schema.Postgres
	rate   float64

	// gate holds back the broker that is up, until all rows of a round are there.
	gate      chan struct{}
	confirmed chan int
}

var errDown = errors.New("connection refused")

func newSide(b *testing.B, waiting int) *side {
	b.Helper()
	s := &side{gate: make(chan struct{}), confirmed: make(chan int, 1024)}
	s.schema = schema.Postgres{Schema: "bench_" + strings.ToLower(rand.Text()[:10])}
	var err error
	s.db, err = sql.Open("postgres", dsn())
	require.NoError(b, err)
	s.db.SetMaxIdleConns(10)
	s.exec(b, `CREATE SCHEMA `+s.schema.Schema)
	b.Cleanup(func() {
		_, err := s.db.ExecContext(context.WithoutCancel(b.Context()), `DROP SCHEMA `+s.schema.Schema+` CASCADE`)
		require.NoError(b, errors.Join(err, s.db.Close()))
	})
	require.NoError(b, s.schema.Migrate(b.Context(), s.db))
	s.insert(b, "down", waiting)
	s.exec(b, `VACUUM ANALYZE `+s.schema.Outbox())
	s.forward(b)
	return s
}

func dsn() string {
	if dsn := os.Getenv("POSTGRES_DSN"); dsn != "" {
		return dsn
	}
	return "postgres://outbox:outbox@127.0.0.1:54329/outbox?sslmode=disable"
}

func (s *side) exec(b *testing.B, query string, args ...any) {
	b.Helper()
	_, err := s.db.ExecContext(b.Context(), query, args...)
	require.NoError(b, err)
}

func (s *side) insert(b *testing.B, destination string, rows int) {
	b.Helper()
	s.exec(b, `INSERT INTO `+s.schema.Outbox()+` (id, destination, payload)
		SELECT gen_random_uuid()::text, $1, repeat('x', 256) FROM generate_series(1, $2::integer)`, destination, rows)
}

func (s *side) count(b *testing.B) (rows int) {
	b.Helper()
	require.NoError(b, s.db.QueryRowContext(b.Context(), `SELECT count(*) FROM `+s.schema.Outbox()).Scan(&rows))
	return rows
}

// forward runs a forwarder with default settings until the benchmark ends.
func (s *side) forward(b *testing.B) {
	b.Helper()
	routes, err := forwarder.NewRoutes(
		map[string]message.Publisher{"up": publisherFunc(s.publish), "down": publisherFunc(refuse)},
		[]forwarder.Route{{Destination: "down", Broker: "down"}, {Destination: "*", Broker: "up"}})
	require.NoError(b, err)
	f, err := forwarder.New(s.db, routes, forwarder.Config{Schema: s.schema}, nil)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		require.NoError(b, <-done)
	})
	<-f.Running()
}

func (s *side) publish(ctx context.Context, msgs []forwarder.Outgoing) []error {
	select {
	case <-s.gate:
	case <-ctx.Done():
	}
	s.confirmed <- len(msgs)
	return make([]error, len(msgs))
}

func refuse(_ context.Context, msgs []forwarder.Outgoing) []error {
	results := make([]error, len(msgs))
	for i := range results {
		results[i] = forwarder.Unavailable(errDown)
	}
	return results
}

// drain returns how many rows a second flow to the broker that is up.
func (s *side) drain(b *testing.B, rows int) float64 {
	b.Helper()
	s.insert(b, "up", rows)
	start := time.Now()
	close(s.gate)
	for left := rows; left > 0; {
		left -= <-s.confirmed
	}
	took := time.Since(start)
	s.gate = make(chan struct{}) // nothing is left that could be published
	s.exec(b, `VACUUM `+s.schema.Outbox())
	return float64(rows) / took.Seconds()
}

type publisherFunc func(ctx context.Context, msgs []forwarder.Outgoing) []error

func (f publisherFunc) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	return f(ctx, msgs)
}

func (f publisherFunc) Publish(string, ...*message.Message) error {
	return errors.New("PublishBatch is to be used")
}

func (f publisherFunc) Close() error { return nil }

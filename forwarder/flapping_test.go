package forwarder_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

var errReset = errors.New("test: connection reset")

// flapping fails each call with a probability, until it is told not to.
type flapping struct {
	mu     sync.Mutex
	random *rand.Rand
	up     float64
	calls  int
	ids    map[string]int
}

func newFlapping(seed uint64, up float64) *flapping {
	return &flapping{random: rand.New(rand.NewPCG(seed, 0)), up: up, ids: map[string]int{}}
}

func (f *flapping) fails() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return f.random.Float64() >= f.up
}

func (f *flapping) setUp(up float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.up = up
}

func (f *flapping) counts() (calls, published int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, len(f.ids)
}

func (f *flapping) publish(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids[id]++
}

// flappingPlain says nothing about its failures.
type flappingPlain struct{ *flapping }

func (f flappingPlain) Close() error { return nil }

func (f flappingPlain) Publish(_ string, msgs ...*message.Message) error {
	if f.fails() {
		return errReset
	}
	f.publish(msgs[0].UUID)
	return nil
}

// inBatches fails a whole batch as a broker does that is away.
func (f *flapping) inBatches() publisherFunc {
	return func(_ context.Context, msgs []forwarder.Outgoing) []error {
		results := make([]error, len(msgs))
		fails := f.fails()
		for i, msg := range msgs {
			if fails {
				results[i] = forwarder.Unavailable(errReset)
				continue
			}
			f.publish(msg.Message.UUID)
		}
		return results
	}
}

// However a broker flaps, no message is taken for one that cannot be sent.
func TestFlappingBrokerConvictsNoMessage(t *testing.T) {
	t.Parallel()
	const rows = 150
	for name, publisher := range map[string]func(*flapping) message.Publisher{
		"plain":   func(f *flapping) message.Publisher { return flappingPlain{f} },
		"batches": func(f *flapping) message.Publisher { return f.inBatches() },
	} {
		for _, up := range []float64{0.01, 0.2, 0.5, 0.9} {
			for _, replicas := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s, up %v, %d replicas", name, up, replicas), func(t *testing.T) {
					t.Parallel()
					seed := rand.Uint64()
					t.Logf("seed %d", seed)
					db := testdb.New(t)
					f := newFlapping(seed, up)
					insert(t, db, "orders", "", ids("a", rows)...)
					for range replicas {
						start(t, db, publisher(f), fast(forwarder.Config{Settlement: forwarder.MarkPublished, MaxAttempts: 3, BatchSize: 50}))
					}
					deadline := time.Now().Add(2 * time.Second)
					eventually(t, func() bool {
						_, published := f.counts()
						return published == rows || time.Now().After(deadline)
					})
					f.setUp(1)
					requireDrained(t, db)
					calls, _ := f.counts()
					var attempts int
					require.NoError(t, db.QueryRowContext(t.Context(), `SELECT sum(attempts) FROM `+db.Schema.Outbox()).Scan(&attempts))
					t.Logf("%d calls, %d attempts", calls, attempts)
					require.Empty(t, deadLetters(t, db, `true`))
					require.LessOrEqual(t, attempts, rows/30)
				})
			}
		}
	}
}

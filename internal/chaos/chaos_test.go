package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// scenario is one thing that goes wrong.
type scenario struct {
	name string
	// short says that it is part of the short form.
	short bool
	// variants are the ways in which it runs. Default: everywhere.
	variants []variant
	// full is how many of them are part of the full form. Default: 1.
	full int
	// settings are the database's.
	settings []string
	// prepare may change what the run is made of.
	prepare func(w *world)
	// faults happen under load.
	faults func(ctx context.Context, w *world, c *ledger.Control) error
	// check looks at the report, beyond what is asked of every run. Default: no dead letters.
	check func(w *world, r ledger.Report)
}

// everywhere is both brokers, one replica and four, with and without PgBouncer.
var everywhere = []variant{{kafka, 1, false}, {rabbitmq, 4, true}}

func scenarios() []scenario {
	all := slices.Concat([]scenario{nothing()}, tcpFaults(), processFaults(), brokerFaults(), databaseFaults(), messageFaults())
	for i := range all {
		if all[i].variants == nil {
			all[i].variants = everywhere
		}
		if all[i].check == nil {
			all[i].check = noneDead
		}
	}
	return all
}

// nothing goes wrong but that Kafka is new, and takes its time.
func nothing() scenario {
	return scenario{
		name: "nothing", short: true, variants: []variant{{kafka, 1, false}},
		prepare: func(w *world) {
			atLeisure(w)
			patientPublisher(w)
		},
		faults: func(context.Context, *world, *ledger.Control) error { return nil },
	}
}

// CHAOS chooses the form: short (the default), full, all or soak. A soak goes on for
// CHAOS_DURATION with what CHAOS_SEED chooses.
const (
	formVariable     = "CHAOS"
	durationVariable = "CHAOS_DURATION"
	seedVariable     = "CHAOS_SEED"
)

// TestFaults runs one scenario after the other: they break what they share. After each
// the books must balance.
func TestFaults(t *testing.T) { //nolint:paralleltest // as said
	seed := chosenSeed(t)
	t.Logf("%s=%d", seedVariable, seed)
	s := startSuite(t)
	switch form := os.Getenv(formVariable); form {
	case "", "short":
		for i, one := range scenarios() { // in one way this one, in another way the next
			if one.short {
				s.run(t, one, one.variants[i%len(one.variants)], seed)
			}
		}
	case "full":
		for i, one := range scenarios() {
			for n := range max(1, one.full) {
				s.run(t, one, one.variants[(i+n)%len(one.variants)], seed)
			}
		}
	case "all":
		for _, one := range scenarios() {
			for _, v := range one.variants {
				s.run(t, one, v, seed)
			}
		}
	case "soak":
		s.soak(t, seed)
	default:
		require.Failf(t, "unknown form", "%s is %q, it must be short, full, all or soak", formVariable, form)
	}
}

func chosenSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv(seedVariable)
	if text == "" {
		return 1 + uint64(rand.Uint32())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, seedVariable)
	return seed
}

// soak runs what chance brings, until the time is over or something fails.
func (s *suite) soak(t *testing.T, seed uint64) {
	t.Helper()
	duration, err := time.ParseDuration(os.Getenv(durationVariable))
	require.NoError(t, err, durationVariable)
	chance := rand.New(rand.NewPCG(seed, 0))
	all := scenarios()
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); {
		one := all[chance.IntN(len(all))]
		s.run(t, one, one.variants[chance.IntN(len(one.variants))], 1+chance.Uint64N(1<<32))
	}
}

func (s *suite) run(t *testing.T, one scenario, v variant, seed uint64) {
	t.Helper()
	t.Run(fmt.Sprintf("%s/%s", one.name, v), func(t *testing.T) {
		w := s.newWorld(t, v, seed, one.settings...)
		if one.prepare != nil {
			one.prepare(w)
		}
		w.config.Faults = func(ctx context.Context, c *ledger.Control) error { return one.faults(ctx, w, c) }
		balanced := false
		defer func() {
			if !balanced {
				figures.failed(one.name, v.String()+w.note)
			}
		}()
		report, err := ledger.Run(t.Context(), w.config)
		require.NoError(t, err)
		ledger.Require(t, report)
		one.check(w, report)
		balanced = true
		figures.add(one.name, v.String()+w.note, report)
	})
}

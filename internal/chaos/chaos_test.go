package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
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
	// thorough says that it is left to the form all, as much like another one.
	thorough bool
	// alone says that it breaks what runs in other lanes need.
	alone bool
	// tableOnly says that it is all the same where forwarders take rows from; shortFromLog
	// that it is part of the short form with the write-ahead log as the source.
	tableOnly, shortFromLog bool
	// variants are the ways in which it runs. Default: everywhere.
	variants []variant
	// full is how many of them are part of the full form. Default: 1.
	full int
	// settings are the database's.
	settings []string
	// prepare may change what the run is made of.
	prepare func(w *world)
	// faults happen under load.
	faults faultsFunc
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
		name: "nothing", short: true, alone: true, variants: []variant{{kafka, 1, false}},
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

// faultsFunc does what goes wrong. The run ends well only if it returns nil.
type faultsFunc func(ctx context.Context, w *world, c *ledger.Control) error

// planned is a scenario in one of its ways.
type planned struct {
	scenario
	variant

	fromLog bool
}

func (p planned) String() string {
	if p.fromLog {
		return p.variant.String() + " log"
	}
	return p.variant.String()
}

// TestFaults runs scenarios. After each the books must balance.
func TestFaults(t *testing.T) { //nolint:paralleltest // its lanes share servers that it alone may stop
	seed := chosenSeed(t)
	t.Logf("%s=%d", seedVariable, seed)
	lanes := startLanes(t)
	form := os.Getenv(formVariable)
	if form == "soak" {
		lanes[0].soak(t, seed)
		return
	}
	runAll(t, lanes[:], planOf(t, form), seed)
}

// planOf has a scenario in one way, and the next one in another, unless the form is all.
func planOf(t *testing.T, form string) (plan []planned) {
	t.Helper()
	for i, one := range scenarios() {
		ways, logged := one.variants, one.logged()
		table, log := 0, 0 // how many of them
		switch form {
		case "", "short":
			table, log = number(one.short), number(one.shortFromLog)
		case "full":
			if !one.thorough {
				table, log = max(1, one.full), 1
			}
		case "all":
			table, log = len(ways), len(logged)
		default:
			require.Failf(t, "unknown form", "%s is %q, it must be short, full, all or soak", formVariable, form)
		}
		for n := range table {
			plan = append(plan, planned{one, ways[(i+n)%len(ways)], false})
		}
		for n := range min(log, len(logged)) {
			plan = append(plan, planned{one, logged[(i+n)%len(logged)], true})
		}
	}
	return plan
}

func number(isOne bool) int {
	if isOne {
		return 1
	}
	return 0
}

// logged are the ways in which it runs with the write-ahead log as the source, which takes a
// connection without a pooler.
func (s scenario) logged() (ways []variant) {
	if s.tableOnly {
		return nil
	}
	for _, v := range s.variants {
		v.pooled = false
		if !slices.Contains(ways, v) {
			ways = append(ways, v)
		}
	}
	return ways
}

// runAll begins with what runs alone. Then each lane takes what is next.
func runAll(t *testing.T, lanes []*lane, plan []planned, seed uint64) {
	t.Helper()
	for _, p := range plan {
		if p.alone {
			lanes[0].run(t, p, seed)
		}
	}
	next := make(chan planned)
	var running sync.WaitGroup
	for _, l := range lanes {
		running.Go(func() {
			for p := range next {
				l.run(t, p, seed)
			}
		})
	}
	for _, p := range plan {
		if !p.alone {
			next <- p
		}
	}
	close(next)
	running.Wait()
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
func (l *lane) soak(t *testing.T, seed uint64) {
	t.Helper()
	duration, err := time.ParseDuration(os.Getenv(durationVariable))
	require.NoError(t, err, durationVariable)
	chance := rand.New(rand.NewPCG(seed, 0))
	all := scenarios()
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); {
		one := all[chance.IntN(len(all))]
		ways, fromLog := one.variants, chance.IntN(2) == 0 && !one.tableOnly
		if fromLog {
			ways = one.logged()
		}
		l.run(t, planned{one, ways[chance.IntN(len(ways))], fromLog}, 1+chance.Uint64N(1<<32))
	}
}

func (l *lane) run(t *testing.T, p planned, seed uint64) {
	t.Helper()
	t.Run(fmt.Sprintf("%s/%s", p.name, p), func(t *testing.T) {
		w := l.newWorld(t, p.variant, seed, p.settings...)
		if p.prepare != nil {
			p.prepare(w)
		}
		faults := p.faults
		if p.fromLog {
			w.readLog()
			faults = whileStreaming(faults)
		}
		w.config.Faults = func(ctx context.Context, c *ledger.Control) error { return faults(ctx, w, c) }
		balanced := false
		defer func() {
			if !balanced {
				figures.failed(p.name, p.String()+w.note)
			}
		}()
		report, err := ledger.Run(t.Context(), w.config)
		require.NoError(t, err)
		ledger.Require(t, report)
		p.check(w, report)
		balanced = true
		figures.add(p.name, p.String()+w.note, report)
	})
}

package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-outbox/outbox/forwarder"
)

// Report is what came of a run.
type Report struct {
	Seed    uint64
	Elapsed time.Duration

	// Commits and events that they wrote; events that were rolled back.
	Transactions int
	Committed    int
	RolledBack   int
	// Crossings is how many transactions committed after one with a higher seq.
	Crossings int

	// Deliveries lie in the broker, Duplicates of them are repetitions.
	Deliveries int
	Duplicates int
	// MaxDuplicates is workers × batch, what one process can have published and not
	// settled, for each replica that was killed, and for as many as each other fault
	// has hit.
	MaxDuplicates int
	// Kills is how many replicas died, SelfKills of them between publish and settle.
	Kills       int
	SelfKills   int
	DeadLetters int
	// FailedWrites are transactions that the database failed, UnansweredCommits those
	// whose COMMIT nobody answered although it took place.
	FailedWrites      int
	UnansweredCommits int
	// ForwarderErrors is what the replicas logged as such: no violation, but of
	// interest where nothing but kills went wrong.
	ForwarderErrors []string

	// Dropped is how often the inbox dropped a message, FailedHandlers how often a
	// handler failed on purpose.
	Dropped        int
	FailedHandlers int

	Violations Violations
}

// Violations is what must not be; each entry names an event and what is wrong.
type Violations struct {
	// Lost were committed, and are neither delivered, nor in the outbox, nor in the
	// dead letters.
	Lost []string
	// Phantoms were delivered and not committed.
	Phantoms []string
	// OutOfOrder were first delivered after a later event of their unit.
	OutOfOrder []string
	// Altered arrived with another destination, partition key, payload or metadata.
	Altered []string
	// MissingEffects were delivered, and the handler's work is not there.
	MissingEffects []string
	// DoubleEffects were handled more than once.
	DoubleEffects []string
	// WrongBalances are keys whose sum is not the number of their events.
	WrongBalances []string
}

// report is called when everything has come to rest.
func (r *run) report(ctx context.Context) (Report, error) {
	f, err := r.facts(ctx)
	if err != nil {
		return Report{}, err
	}
	if err := r.replicas.races(); err != nil {
		return Report{}, err
	}
	return Report{
		Seed:              r.config.Seed,
		Elapsed:           time.Since(r.started),
		Transactions:      len(r.book.commits),
		Committed:         len(f.committed),
		RolledBack:        len(r.book.rolledBack),
		Crossings:         r.book.crossings(),
		Deliveries:        len(f.deliveries),
		Duplicates:        f.duplicates(),
		MaxDuplicates:     (r.replicas.died + r.hit) * r.config.Forwarder.unsettled(),
		Kills:             r.replicas.died,
		SelfKills:         r.config.SelfKills,
		ForwarderErrors:   r.replicas.errors(),
		DeadLetters:       len(f.dead),
		FailedWrites:      len(r.book.failures),
		UnansweredCommits: r.book.unanswered,
		Dropped:           int(r.consumer.duplicates.Load()),
		FailedHandlers:    r.consumer.faults.injected,
		Violations:        f.verdict(),
	}, nil
}

func (r *run) facts(ctx context.Context) (facts, error) {
	f := facts{
		ordered:    r.config.Forwarder.Ordering == forwarder.PerKey,
		written:    r.book.events,
		deliveries: r.deliveries,
	}
	var err error
	if f.committed, err = texts(ctx, r.db, `SELECT event_id FROM `+r.tables.events); err != nil {
		return f, err
	}
	if f.waiting, err = r.tables.waiting(ctx, r.db); err != nil {
		return f, err
	}
	if f.dead, err = texts(ctx, r.db, `SELECT id FROM `+r.tables.deadLetters); err != nil {
		return f, err
	}
	if f.effects, err = counts(ctx, r.db, `SELECT event_id, count(*) FROM `+r.tables.effects+` GROUP BY event_id`); err != nil {
		return f, err
	}
	if f.balances, err = counts(ctx, r.db, `SELECT key, balance FROM `+r.tables.balances); err != nil {
		return f, err
	}
	return f, r.requireTruth(f.committed)
}

// requireTruth holds the business table against what the writers saw: it must have
// what was committed, and nothing that was rolled back.
func (r *run) requireTruth(committed []string) error {
	truth := set(committed)
	for id := range r.book.committed {
		if !truth[id] {
			return fmt.Errorf("ledger: %s was committed, and has no business row", id)
		}
	}
	for id := range r.book.rolledBack {
		if truth[id] {
			return fmt.Errorf("ledger: %s was rolled back, and has a business row", id)
		}
	}
	return nil
}

// all lists every violation under its name, the empty ones too.
func (v Violations) all() map[string][]string {
	return map[string][]string{
		"lost":            v.Lost,
		"phantoms":        v.Phantoms,
		"out of order":    v.OutOfOrder,
		"altered":         v.Altered,
		"missing effects": v.MissingEffects,
		"double effects":  v.DoubleEffects,
		"wrong balances":  v.WrongBalances,
	}
}

// Errors lists what is wrong, one line for each kind; none: the books balance.
func (r Report) Errors() (lines []string) {
	const shown = 5
	all := r.Violations.all()
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		if found := all[kind]; len(found) > 0 {
			lines = append(lines, fmt.Sprintf("%s: %d, as\n  %s", kind, len(found), strings.Join(found[:min(shown, len(found))], "\n  ")))
		}
	}
	if r.Duplicates > r.MaxDuplicates {
		lines = append(lines, fmt.Sprintf("duplicates: %d, at most %d are explained by %d kills and what else went wrong",
			r.Duplicates, r.MaxDuplicates, r.Kills))
	}
	if r.SelfKills > 0 && r.Duplicates == 0 {
		lines = append(lines, "duplicates: none, although replicas died between publish and settle")
	}
	return lines
}

// String is the report in a few lines.
func (r Report) String() string {
	v := r.Violations
	return fmt.Sprintf(
		`seed=%d elapsed=%s transactions=%d committed=%d rolled_back=%d crossings=%d
kills=%d (%d between publish and settle) forwarder_errors=%d deliveries=%d duplicates=%d (at most %d) dead_letters=%d
dropped_by_inbox=%d failed_handlers=%d failed_writes=%d unanswered_commits=%d
lost=%d phantoms=%d out_of_order=%d altered=%d missing_effects=%d double_effects=%d wrong_balances=%d`,
		r.Seed, r.Elapsed.Round(time.Millisecond), r.Transactions, r.Committed, r.RolledBack, r.Crossings,
		r.Kills, r.SelfKills, len(r.ForwarderErrors), r.Deliveries, r.Duplicates, r.MaxDuplicates, r.DeadLetters,
		r.Dropped, r.FailedHandlers, r.FailedWrites, r.UnansweredCommits,
		len(v.Lost), len(v.Phantoms), len(v.OutOfOrder), len(v.Altered), len(v.MissingEffects), len(v.DoubleEffects), len(v.WrongBalances))
}

// Require fails the test where the books do not balance, and logs the figures.
func Require(tb testing.TB, r Report) {
	tb.Helper()
	tb.Log("\n" + r.String())
	for _, line := range r.ForwarderErrors[:min(5, len(r.ForwarderErrors))] {
		tb.Log(line)
	}
	if lines := r.Errors(); len(lines) > 0 {
		tb.Fatal("the books do not balance:\n" + strings.Join(lines, "\n"))
	}
}

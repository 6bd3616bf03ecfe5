package forwarder

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"
)

// absence is a broker or a destination that is away. Its rows are not claimed: one of
// them is tried from time to time, alone, until it gets through.
type absence struct {
	outage *outage
	// entry is what the registry knows it by.
	entry entry
	// message and err tell of the last failure.
	message string
	err     error
	// registered says that the registry may have it.
	registered bool

	// broker is the one that is away, or that of the destination. Empty: there is but one.
	broker string
	// destinations are those whose rows wait. For a broker, they are added as they turn
	// up.
	destinations map[string]struct{}

	// tried are the hashes of the units that were tried last.
	tried []int64
	// byWorkers says that no failure was surely the broker's: when the time has come,
	// workers try whatever there is.
	byWorkers bool
	// until is when it is tried next.
	until   time.Time
	backOff backoff.BackOff
}

// maxTried is how many units are tried before the first is tried again.
const maxTried = 64

// absences are what is away at the moment. All workers share them.
type absences struct {
	config Config
	marks  *marks
	logger watermill.LoggerAdapter
	// changed wakes the prober.
	changed chan struct{}

	mu           sync.Mutex
	brokers      map[string]*absence
	destinations map[string]*absence
	// ended are those that the registry is to forget.
	ended []entry
	// reopened are brokers that workers are trying, and of which nothing is known yet.
	reopened map[string]*absence
}

func newAbsences(cfg Config, marks *marks, logger watermill.LoggerAdapter) *absences {
	return &absences{
		config:       cfg,
		marks:        marks,
		logger:       logger,
		changed:      make(chan struct{}, 1),
		brokers:      map[string]*absence{},
		destinations: map[string]*absence{},
		reopened:     map[string]*absence{},
	}
}

// destinationGone makes a destination wait. Many messages of one batch count once.
func (a *absences) destinationGone(broker, destination string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.destinations[destination]
	if known == nil {
		known = a.newAbsence(entry{kindDestination, destination}, broker)
		known.destinations[destination] = struct{}{}
		a.destinations[destination] = known
		a.update(false)
	}
	a.postpone(known, "Destination is unavailable, its messages wait", err)
}

// brokerGone makes everything that goes to a broker wait.
func (a *absences) brokerGone(broker string, destinations []string, byWorkers bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.brokers[broker]
	if known == nil {
		if known = a.reopened[broker]; known == nil {
			known = a.newAbsence(entry{kindBroker, broker}, broker)
		}
		delete(a.reopened, broker)
		a.brokers[broker] = known
		a.update(false)
	}
	a.add(known, destinations)
	known.byWorkers = byWorkers
	a.postpone(known, "Broker is unavailable, its messages stay in the outbox", err)
}

// hold makes further destinations of a broker that is away wait with it.
func (a *absences) hold(broker string, destinations []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.brokers[broker]; known != nil {
		a.add(known, destinations)
	}
}

func (a *absences) add(known *absence, destinations []string) {
	before := len(known.destinations)
	for _, destination := range destinations {
		known.destinations[destination] = struct{}{}
	}
	if len(known.destinations) > before {
		a.update(false)
	}
}

func (a *absences) newAbsence(e entry, broker string) *absence {
	what := strings.ToUpper(e.kind[:1]) + e.kind[1:]
	return &absence{
		outage:       &outage{what: what, logger: a.logger.With(watermill.LogFields{e.kind: e.name})},
		entry:        e,
		broker:       broker,
		destinations: map[string]struct{}{},
		backOff:      a.config.newBackOff(),
	}
}

// postpone sets the time of the next try, unless it was set already since the last.
func (a *absences) postpone(known *absence, message string, err error) {
	now := time.Now()
	known.message, known.err = message, err
	if now.Before(known.until) {
		return
	}
	wait := a.config.next(known.backOff)
	known.until = now.Add(wait)
	known.outage.note(message, err, wait, now)
	a.wake()
}

// brokerBack ends the wait of a broker that took a message, or said something about one.
func (a *absences) brokerBack(broker string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.brokers[broker]; known != nil {
		delete(a.brokers, broker)
		a.over(known)
	}
	if known := a.reopened[broker]; known != nil {
		delete(a.reopened, broker)
		a.end(known)
		a.wake()
	}
}

// reopen has workers try a broker. If it fails them, it waits longer than before.
func (a *absences) reopen(known *absence) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.brokers[known.broker] == known {
		delete(a.brokers, known.broker)
		a.reopened[known.broker] = known
		a.update(true)
	}
}

// destinationBack ends the wait of a destination that took a message.
func (a *absences) destinationBack(destination string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.destinations[destination]; known != nil {
		delete(a.destinations, destination)
		a.over(known)
	}
}

// nothingWaits ends an absence for which there is nothing to try. If the next row fails,
// it begins again.
func (a *absences) nothingWaits(known *absence) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.has(known) {
		maps.DeleteFunc(a.brokers, func(_ string, other *absence) bool { return other == known })
		maps.DeleteFunc(a.destinations, func(_ string, other *absence) bool { return other == known })
		a.over(known)
	}
}

// tried notes a try that has not ended the absence.
func (a *absences) tried(known *absence, h head, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(known.tried) >= maxTried || slices.Contains(known.tried, h.unitHash) {
		known.tried = nil
	}
	if h.ok {
		known.tried = append(known.tried, h.unitHash)
	}
	if a.has(known) {
		known.until = time.Now().Add(wait)
		known.outage.note(known.message, known.err, wait, time.Now())
	}
}

func (a *absences) has(known *absence) bool {
	for _, all := range []map[string]*absence{a.brokers, a.destinations} {
		for _, other := range all {
			if other == known {
				return true
			}
		}
	}
	return false
}

func (a *absences) over(known *absence) {
	a.update(true)
	a.end(known)
	a.wake()
}

func (a *absences) end(known *absence) {
	known.outage.over()
	if known.registered {
		a.ended = append(a.ended, known.entry)
	}
}

// takeEnded returns what the registry is to forget.
func (a *absences) takeEnded() []entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	ended := a.ended
	a.ended = nil
	return ended
}

// remember has the registry forget what is no longer away.
func (a *absences) remember(entries ...entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = append(a.ended, entries...)
}

// register says that the registry gets to know of an absence, and returns what to say.
func (a *absences) register(known *absence) (wait time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known.registered = true
	wait = a.config.next(known.backOff)
	known.until = time.Now().Add(wait)
	return wait, known.err
}

// theirs leaves a try to another forwarder.
func (a *absences) theirs(known *absence, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known.until = time.Now().Add(min(wait, a.config.RetryMax))
}

// isAway says whether a broker is away.
func (a *absences) isAway(broker string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.brokers[broker] != nil
}

// isAbsent says whether an absence has not ended.
func (a *absences) isAbsent(known *absence) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.has(known)
}

// attempt is an absence to try now.
type attempt struct {
	absence      *absence
	destinations []string
	tried        []int64
	byWorkers    bool
}

func (known *absence) attempt() attempt {
	return attempt{
		absence:      known,
		destinations: slices.Sorted(maps.Keys(known.destinations)),
		tried:        slices.Clone(known.tried),
		byWorkers:    known.byWorkers,
	}
}

// due lists, by broker, what is to be tried now, and how long the prober may sleep
// after that. While a broker is away its destinations need no try of their own.
func (a *absences) due() (due map[string][]attempt, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	due, wait = map[string][]attempt{}, a.config.RetryMax
	all := slices.Collect(maps.Values(a.brokers))
	for _, known := range a.destinations {
		if a.brokers[known.broker] == nil {
			all = append(all, known)
		}
	}
	for _, known := range all {
		if now.Before(known.until) {
			wait = min(wait, known.until.Sub(now))
		} else {
			due[known.broker] = append(due[known.broker], known.attempt())
		}
	}
	return due, wait
}

// update tells the marks what claims are to leave out.
func (a *absences) update(fewer bool) {
	away := map[string]struct{}{}
	for _, known := range a.brokers {
		maps.Copy(away, known.destinations)
	}
	for _, known := range a.destinations {
		maps.Copy(away, known.destinations)
	}
	a.marks.leaveOut(slices.Sorted(maps.Keys(away)), fewer)
}

func (a *absences) wake() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

package forwarder

import (
	"sync"
	"time"
)

// maxStretch is how many times PublishTimeout a single message may take, where that is what
// a slow broker needs.
const maxStretch = 4

// pace is how much a broker is given at once, and for how long it is waited for. After a
// failure that is not one message's it begins anew with a single one: that finds out whether
// the broker is there, and in the end which message it does not survive. It grows while the
// broker answers in less than half of the time that it has, so that one that is slow is not
// given the same batch for ever. All workers share it.
type pace struct {
	longest time.Duration // PublishTimeout
	most    int           // BatchSize

	mu      sync.Mutex
	rows    int
	stretch int
}

func newPace(cfg Config) *pace {
	return &pace{longest: cfg.PublishTimeout, most: cfg.BatchSize, rows: cfg.BatchSize, stretch: 1}
}

// now returns how many rows to send at once, and how many times PublishTimeout they have.
func (p *pace) now() (rows, stretch int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rows, p.stretch
}

// sent is what came of what was sent to one broker at once.
type sent struct {
	rows      int
	confirmed int
	// away says that the broker failed, or seems to have.
	away     bool
	timedOut bool
	took     time.Duration
}

func (p *pace) learn(s sent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case s.away && s.confirmed > 0:
		p.rows = min(p.rows, s.confirmed)
	case s.away:
		p.stretchAfter(s)
		p.rows = 1
	case s.took < p.longest/2:
		p.stretch = 1
		p.grow(s)
	case s.took < p.longest*time.Duration(p.stretch)/2:
		p.grow(s)
	}
}

// stretchAfter lets a single message that was too slow have longer, and then no longer:
// where nobody answers at all, no transaction is to be kept open for it.
func (p *pace) stretchAfter(s sent) {
	switch {
	case !s.timedOut || s.rows > 1:
	case p.stretch >= maxStretch:
		p.stretch = 1
	default:
		p.stretch *= 2
	}
}

// grow does so only where the pace was the limit.
func (p *pace) grow(s sent) {
	if s.confirmed > 0 && s.rows >= p.rows {
		p.rows = min(2*p.rows, p.most)
	}
}

// paces are those of the brokers, by name.
type paces struct {
	config Config

	mu     sync.Mutex
	byName map[string]*pace
}

func (p *paces) of(broker string) *pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byName == nil {
		p.byName = map[string]*pace{}
	}
	known := p.byName[broker]
	if known == nil {
		known = newPace(p.config)
		p.byName[broker] = known
	}
	return known
}

// stretch is the longest of any.
func (p *paces) stretch() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest := 1
	for _, known := range p.byName {
		_, stretch := known.now()
		longest = max(longest, stretch)
	}
	return longest
}

package main

import (
	"fmt"
	"time"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
)

// progress tells in lines what has been measured, for a terminal as well as for a log.
type progress struct {
	started     time.Time
	comparisons int
	current     int
}

func (p *progress) begin(c compare.Comparison) {
	p.current++
	p.linef("%s: %s", c.Name, c.Title)
}

func (p *progress) tell(e compare.Event) {
	text := fmt.Sprintf("  round %d/%d  %-42s", e.Round, e.Rounds, e.Side)
	if e.Known {
		text += fmt.Sprintf(" %8.*f %s", digits(e.Value), e.Value, e.Unit)
	}
	if e.Lost > 0 {
		text += fmt.Sprintf("  LOST %d", e.Lost)
	}
	p.linef("%s", text)
}

// digits are those behind the point.
func digits(value float64) int {
	if value >= 100 {
		return 0
	}
	return 2
}

func (p *progress) linef(format string, args ...any) {
	fmt.Printf("[%2d/%d %5.0fs] %s\n", p.current, p.comparisons, time.Since(p.started).Seconds(), fmt.Sprintf(format, args...))
}

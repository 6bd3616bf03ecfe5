package forwarder

import (
	"cmp"
	"slices"
	"time"
)

// maxSpans bounds the memory of a retention. What is forgotten is read again.
const maxSpans = 10_000

// span are the rows with seqs above from and up to to. None of them can be old before until:
// what is not published yet, or appears there later, is published later.
type span struct {
	from, to int64
	until    time.Time
}

// spans are what a retention need not read again for now: a million rows that wait are read
// once in the time for which published ones are kept, not every hour.
type spans []span

func (s *spans) add(seen span) { *s = append(*s, seen) }

// skip is where to read on.
func (s *spans) skip(from int64) int64 {
	for moved := true; moved; {
		moved = false
		for _, seen := range *s {
			if seen.from <= from && from < seen.to {
				from, moved = seen.to, true
			}
		}
	}
	return from
}

func (s *spans) forgetUntil(now time.Time) {
	*s = slices.DeleteFunc(*s, func(seen span) bool { return !seen.until.After(now) })
}

// merge makes one of neighbours whose times are near, and takes the earlier one.
func (s *spans) merge(near time.Duration) {
	slices.SortFunc(*s, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var merged spans
	for _, next := range *s {
		if len(merged) > 0 {
			last := &merged[len(merged)-1]
			if next.from <= last.to && last.until.Sub(next.until).Abs() <= near {
				last.to = max(last.to, next.to)
				if next.until.Before(last.until) {
					last.until = next.until
				}
				continue
			}
		}
		merged = append(merged, next)
	}
	*s = merged[:min(len(merged), maxSpans)]
}

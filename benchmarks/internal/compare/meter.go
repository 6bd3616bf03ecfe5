package compare

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Meter notes when messages were confirmed. It is safe for concurrent use.
type Meter struct {
	want    int
	started chan struct{}
	done    chan struct{}

	mu    sync.Mutex
	start time.Time
	marks []mark
}

// mark says that so many messages had been confirmed at that time.
type mark struct {
	at    time.Time
	total int
}

// NewMeter returns a Meter for so many messages.
func NewMeter(want int) *Meter {
	return &Meter{want: want, started: make(chan struct{}), done: make(chan struct{})}
}

// Start notes that from now on nothing but the work itself takes time: connections to the
// servers are made. Only the first call counts.
func (m *Meter) Start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.start.IsZero() {
		m.start = time.Now()
		close(m.started)
	}
}

// AwaitStart returns after Start, or when ctx ends: nothing is sent before the time runs.
func (m *Meter) AwaitStart(ctx context.Context) {
	select {
	case <-m.started:
	case <-ctx.Done():
	}
}

// Add notes that messages were confirmed now.
func (m *Meter) Add(messages int) {
	if messages == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	total := messages
	if len(m.marks) > 0 {
		total += m.marks[len(m.marks)-1].total
	}
	m.marks = append(m.marks, mark{at: time.Now(), total: total})
	if total >= m.want && total-messages < m.want {
		close(m.done)
	}
}

var errTooLate = errors.New("not all messages were confirmed in time")

// Wait returns once all messages were confirmed, or an error.
func (m *Meter) Wait(ctx context.Context, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		m.mu.Lock()
		defer m.mu.Unlock()
		total := 0
		if len(m.marks) > 0 {
			total = m.marks[len(m.marks)-1].total
		}
		return fmt.Errorf("%w: %d of %d in %s", errTooLate, total, m.want, limit)
	}
}

// Sample has what was confirmed since Start.
func (m *Meter) Sample() Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.marks) == 0 {
		return Sample{}
	}
	last := m.marks[len(m.marks)-1]
	return Sample{Messages: last.total, Took: last.at.Sub(m.start)}
}

// Part is for a part of the messages, such as 0.9 to 1 for the last tenth. It begins with the
// first confirmation at the earliest.
func (m *Meter) Part(from, to float64) Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.marks) < 2 {
		return Sample{}
	}
	first, last := m.marks[0], m.marks[len(m.marks)-1]
	begin := max(float64(first.total), from*float64(last.total))
	end := max(begin, to*float64(last.total))
	return Sample{Messages: int(end - begin), Took: m.reached(end).Sub(m.reached(begin))}
}

// reached tells when the total was reached; between two marks, it grew evenly.
func (m *Meter) reached(total float64) time.Time {
	for i, mark := range m.marks {
		if float64(mark.total) < total {
			continue
		}
		if i == 0 {
			return mark.at
		}
		before := m.marks[i-1]
		share := (total - float64(before.total)) / float64(mark.total-before.total)
		return before.at.Add(time.Duration(share * float64(mark.at.Sub(before.at))))
	}
	return m.marks[len(m.marks)-1].at
}

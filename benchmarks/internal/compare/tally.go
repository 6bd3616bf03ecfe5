package compare

import (
	"fmt"
	"strconv"
	"sync"
)

// Tally counts at the far end what arrived of a set of messages. Their ids are a prefix and
// a number from 1, as ID makes them. It is safe for concurrent use.
type Tally struct {
	prefix string

	mu      sync.Mutex
	seen    []bool
	arrived int
	again   int
	foreign int
}

// idDigits is how many digits the number in an id has.
const idDigits = 12

// NewTally returns a Tally for so many messages.
func NewTally(prefix string, messages int) *Tally {
	return &Tally{prefix: prefix, seen: make([]bool, messages)}
}

// ID is the id of the message with that number.
func (t *Tally) ID(number int) string { return fmt.Sprintf("%s%0*d", t.prefix, idDigits, number) }

// Add notes that a message arrived.
func (t *Tally) Add(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := t.Number(id)
	switch {
	case number < 1 || number > len(t.seen):
		t.foreign++
	case t.seen[number-1]:
		t.again++
	default:
		t.seen[number-1] = true
		t.arrived++
	}
}

// Number is that of the message with the id, or 0 for an id of others.
func (t *Tally) Number(id string) int {
	if len(id) != len(t.prefix)+idDigits || id[:len(t.prefix)] != t.prefix {
		return 0
	}
	number, err := strconv.Atoi(id[len(t.prefix):])
	if err != nil || number < 1 {
		return 0
	}
	return number
}

// Arrived is how many different messages have arrived.
func (t *Tally) Arrived() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.arrived
}

// Into writes into a sample what is missing and what came twice. A message that nobody
// sent is an error.
func (t *Tally) Into(s *Sample) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Lost, s.Duplicates = len(t.seen)-t.arrived, t.again
	if t.foreign > 0 {
		return fmt.Errorf("%d messages arrived that were not sent", t.foreign)
	}
	return nil
}

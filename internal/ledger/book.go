package ledger

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// event is what a writer meant to send.
type event struct {
	id          string
	destination string
	// partitionKey is empty for an event that is a unit of its own.
	partitionKey string
	// key and n are what the payload says: the account, and the count within it.
	key      string
	n        int64
	payload  []byte
	metadata map[string]string
}

// book is what the writers remember.
type book struct {
	clock atomic.Int64

	mu sync.Mutex
	// events holds every event that was written in a transaction, whatever became of it.
	events     map[string]event
	committed  map[string]bool
	rolledBack map[string]bool
	commits    []commit
	failures   []error
	unanswered int
}

// commit is when a transaction's COMMIT began and ended, by the book's clock, and the
// last seq that it had drawn.
type commit struct{ seq, began, ended int64 }

func newBook() *book {
	return &book{events: map[string]event{}, committed: map[string]bool{}, rolledBack: map[string]bool{}}
}

// write is called before an event is written to the database.
func (b *book) write(e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events[e.id] = e
}

func (b *book) commit(c commit, events []event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.commits = append(b.commits, c)
	for _, e := range events {
		b.committed[e.id] = true
	}
}

func (b *book) rollBack(events []event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		b.rolledBack[e.id] = true
	}
}

func (b *book) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = append(b.failures, err)
}

func (b *book) commitUnanswered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unanswered++
}

func (b *book) tick() int64 { return b.clock.Add(1) }

// crossings is how many transactions began to commit only after another with a higher
// seq had committed. A forwarder that remembers the highest seq would skip them.
func (b *book) crossings() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	bySeq := slices.SortedFunc(slices.Values(b.commits), func(x, y commit) int { return cmp.Compare(y.seq, x.seq) })
	crossed := 0
	for i, earliest := 0, int64(0); i < len(bySeq); i++ {
		c := bySeq[i]
		if i > 0 && earliest < c.began {
			crossed++
		}
		if i == 0 || c.ended < earliest {
			earliest = c.ended
		}
	}
	return crossed
}

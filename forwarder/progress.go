package forwarder

import "sync"

// progress knows up to where all changes of a stream are settled, whichever workers have them.
type progress struct {
	settled func(upTo Position)

	mu sync.Mutex
	// pending are those that are not, and those behind one that is not, in their order.
	pending []*change
}

// change is one that a worker has.
type change struct {
	row

	position    Position
	transaction uint32
	done        bool
}

// add takes changes in their order, before any is done.
func (p *progress) add(changes []*change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = append(p.pending, changes...)
}

// finish says that changes are settled, or wait in the table.
func (p *progress) finish(changes []*change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range changes {
		c.done = true
	}
	var last *change
	for len(p.pending) > 0 && p.pending[0].done {
		last, p.pending[0] = p.pending[0], nil
		p.pending = p.pending[1:]
	}
	if last != nil {
		p.settled(last.position)
	}
}

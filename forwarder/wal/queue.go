package wal

import (
	"context"
	"sync"

	"github.com/watermill-outbox/outbox/forwarder"
)

// queue is what was read ahead. It holds so many bytes, and one row more.
type queue struct {
	limit int
	// filled and emptied get something when the other side may go on.
	filled, emptied chan struct{}

	mu      sync.Mutex
	changes []forwarder.Change
	bytes   int
	err     error
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1)}
}

// changeOverhead is what a change takes beside its texts.
const changeOverhead = 256

func sizeOf(c forwarder.Change) int {
	return changeOverhead + len(c.ID) + len(c.Destination) + len(c.PartitionKey) + len(c.Payload) + len(c.Metadata)
}

func (q *queue) isFull() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes >= q.limit
}

func (q *queue) push(c forwarder.Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changes = append(q.changes, c)
	q.bytes += sizeOf(c)
	signal(q.filled)
}

// end has take return err, after what is there.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
	signal(q.filled)
}

// take waits until there is something, and takes all.
func (q *queue) take(ctx context.Context) ([]forwarder.Change, error) {
	for {
		if changes, err := q.takeNow(); len(changes) > 0 || err != nil {
			return changes, err
		}
		select {
		case <-q.filled:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (q *queue) takeNow() ([]forwarder.Change, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	changes := q.changes
	if len(changes) == 0 {
		return nil, q.err
	}
	q.changes, q.bytes = nil, 0
	signal(q.emptied)
	return changes, nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

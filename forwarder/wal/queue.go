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

	mu     sync.Mutex
	chunks []chunk
	bytes  int
	err    error
}

// chunk is what is taken at once. What a forwarder makes of a row is larger than the row.
type chunk struct {
	changes []forwarder.Change
	bytes   int
}

const (
	chunkRows  = 1000
	chunkBytes = 1 << 20
)

func (c chunk) isFull() bool { return len(c.changes) >= chunkRows || c.bytes >= chunkBytes }

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
	if len(q.chunks) == 0 || q.chunks[len(q.chunks)-1].isFull() {
		q.chunks = append(q.chunks, chunk{})
	}
	last, size := &q.chunks[len(q.chunks)-1], sizeOf(c)
	last.changes = append(last.changes, c)
	last.bytes += size
	q.bytes += size
	signal(q.filled)
}

// end has take return err, after what is there.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
	signal(q.filled)
}

// take waits until there is something, and takes the first of it.
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
	if len(q.chunks) == 0 {
		return nil, q.err
	}
	first := q.chunks[0]
	q.chunks[0] = chunk{}
	q.chunks = q.chunks[1:]
	q.bytes -= first.bytes
	signal(q.emptied)
	return first.changes, nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

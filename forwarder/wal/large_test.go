package wal_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// peak is how much more of the heap is in use than before, at most. What ends with the function counts.
func peak(t *testing.T, during func()) (bytes uint64) {
	t.Helper()
	inUse := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapInuse
	}
	runtime.GC()
	before := inUse()
	var most atomic.Uint64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for ticker := time.NewTicker(10 * time.Millisecond); ; {
			most.Store(max(most.Load(), inUse()))
			select {
			case <-ticker.C:
			case <-done:
				ticker.Stop()
				return
			}
		}
	}()
	during()
	close(done)
	<-ended
	return most.Load() - min(before, most.Load())
}

// counting is a slow broker that remembers no more of a key than the last message.
type counting struct {
	broker

	last  []int
	total int
	wrong []string
	// pause is longer than the server waits for a report.
	pause sync.Once
}

func (c *counting) PublishBatch(_ context.Context, msgs []forwarder.Outgoing) []error {
	time.Sleep(200 * time.Microsecond) //nolint:forbidigo // the time that is meant
	if len(msgs) > 1 {
		c.pause.Do(func() { time.Sleep(5 * time.Second) }) //nolint:forbidigo // as above
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, msg := range msgs {
		if msg.PartitionKey == "probe" {
			continue
		}
		var key, n int
		if _, err := fmt.Sscanf(msg.Message.UUID, "%d-%d", &key, &n); err != nil || n != c.last[key]+1 {
			c.wrong = append(c.wrong, fmt.Sprintf("%s after %d", msg.Message.UUID, c.last[key]))
			continue
		}
		c.last[key]++
		c.total++
	}
	return make([]error, len(msgs))
}

func (c *counting) all() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// A transaction of any size goes through in bounded memory, each row once, in order, however slow the
// broker is beside what the server waits for.
func TestVeryLargeTransaction(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	rows := 500_000
	if isRace || testing.Short() {
		rows = 100_000
	}
	const keys, most = 100, 128 << 20
	db := testdb.New(t)
	c := &counting{last: make([]int, keys)}
	source := newSource(t, db, func(cfg *wal.Config) {
		cfg.ReplicationDSN = testdb.WithSetting(t, cfg.ReplicationDSN, "options", "-c wal_sender_timeout=3s")
	})
	run(t, db, c, forwarder.Config{Source: source})
	requireStreaming(t, db)
	began := time.Now()
	used := peak(t, func() {
		exec(t, db, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			SELECT g.n % $2 || '-' || g.n / $2 + 1, 'orders', g.n % $2, 'x' FROM generate_series(0, $1 - 1) AS g (n) ORDER BY g.n`, rows, keys)
		eventually(t, func() bool { return c.all() >= rows && count(t, db, db.Schema.Outbox()) == 0 })
		requireAllConfirmed(t, db)
	})
	t.Logf("%d rows in %s, with %d MiB of the heap", rows, time.Since(began).Round(time.Millisecond), used>>20)
	require.Empty(t, c.wrong)
	require.Equal(t, rows, c.all())
	require.Less(t, used, uint64(most))
}

// A very large row is delivered, and so are the others of its transaction and those behind it.
func TestVeryLargeRow(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	if testing.Short() {
		t.Skip("it takes much memory")
	}
	const size = 100 << 20
	db := testdb.New(t)
	var b sizes
	run(t, db, &b, forwarder.Config{Source: newSource(t, db)})
	requireStreaming(t, db)
	used := peak(t, func() {
		tx := begin(t, db)
		insertKeyed(t, db, tx, "orders", "a", "a-1")
		exec(t, tx, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload)
			VALUES ('large', 'orders', 'a', repeat('0123456789', $1::integer / 10))`, size)
		insertKeyed(t, db, tx, "orders", "a", "a-2")
		require.NoError(t, tx.Commit())
		insertKeyed(t, db, db, "orders", "b", ids("b", 10)...)
		requireDrained(t, db)
		requireAllConfirmed(t, db)
	})
	t.Logf("%d MiB of the heap for a row of %d MiB", used>>20, size>>20)
	require.Equal(t, []string{"a-1", "large", "a-2"}, b.of("a"))
	require.Equal(t, ids("b", 10), b.of("b"))
	require.EqualValues(t, size, b.largest.Load())
	require.Less(t, used, uint64(4*size))
}

// sizes is a broker that keeps the size of the largest message.
type sizes struct {
	broker

	largest atomic.Int64
}

func (s *sizes) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	for _, msg := range msgs {
		s.largest.Store(max(s.largest.Load(), int64(len(msg.Message.Payload))))
	}
	return s.broker.PublishBatch(ctx, msgs)
}

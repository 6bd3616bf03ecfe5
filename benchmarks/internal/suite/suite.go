// Package suite holds the comparisons: what is measured, beside what, and which ratio it
// should reach.
package suite

import (
	"time"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
)

// Scale says how much is measured.
type Scale struct {
	// Rounds is how often each side has its turn, and FewRounds where a turn takes long.
	Rounds, FewRounds int
	// Payloads are the sizes of messages, in bytes.
	Payloads []int
	// Rows are drained to a sink or to Kafka in a turn, BrokerRows to RabbitMQ, and SingleRows
	// to a broker by Watermill's forwarder, one by one.
	Rows, BrokerRows, SingleRows int
	// StockBacklog is the one in which this project's forwarder and Watermill's drain to a sink.
	StockBacklog int
	// Waiting rows are due to a broker that is away.
	Waiting int
	// Backlogs are the sizes of those that are drained. The last one has targets if it has a
	// million rows at least.
	Backlogs []int
	// Writing is how long writers write in a turn, Listening how long latencies are taken, and
	// Idle how long nothing happens.
	Writing, Listening, Idle time.Duration
	// Silence is how long it lasts before a first event.
	Silence time.Duration
	// SmallRows of 256 B and LargeRows of 1 MiB are drained to see how much memory it takes.
	SmallRows, LargeRows int
}

// Long is the whole suite, Short a first impression.
var (
	Long = Scale{
		Rounds: 5, FewRounds: 3, Payloads: []int{256, 4096}, Rows: 60_000, BrokerRows: 20_000, SingleRows: 1_000, StockBacklog: 20_000,
		Waiting: 1_000_000, Backlogs: []int{20_000, 200_000, 1_000_000}, Writing: 600 * time.Millisecond,
		Listening: 3 * time.Second, Idle: 6 * time.Second, Silence: 10 * time.Second, SmallRows: 1_000_000, LargeRows: 2_000,
	}
	Short = Scale{
		Rounds: 3, FewRounds: 1, Payloads: []int{256}, Rows: 20_000, BrokerRows: 10_000, SingleRows: 500, StockBacklog: 20_000,
		Waiting: 100_000, Backlogs: []int{20_000, 200_000}, Writing: 300 * time.Millisecond,
		Listening: 2 * time.Second, Idle: 4 * time.Second, Silence: 10 * time.Second, SmallRows: 100_000, LargeRows: 200,
	}
)

// fewer rows where they are large: writing them takes longer than draining them.
func fewer(rows, payload int) int {
	if payload > 1024 {
		return rows / 4
	}
	return rows
}

// All are the comparisons, in the order in which they run.
func All(r rig.Rig, scale Scale) (all []compare.Comparison) {
	add := func(comparisons ...compare.Comparison) { all = append(all, comparisons...) }
	concurrency := []int{1, 4, 16}
	for _, writers := range concurrency {
		add(publisher(r, scale, writers, 1), publisher(r, scale, writers, 100))
	}
	for _, payload := range scale.Payloads {
		add(
			forwarderFloor(r, scale, fewer(scale.Rows, payload), payload),
			forwarderWatermill(r, scale, payload),
			forwarderBroker(r, r.RabbitMQ(), scale, fewer(scale.BrokerRows, payload), payload, 15),
			forwarderBroker(r, r.Kafka(), scale, fewer(scale.Rows, payload), payload, 8),
		)
	}
	add(scalingWorkers(r, scale), scalingReplicas(r, scale))
	add(scalingKeys(r, r.RabbitMQ(), scale), hotKey(r, r.RabbitMQ(), scale))
	for _, rows := range scale.Backlogs {
		add(backlog(r, scale, rows))
	}
	add(brokerAway(r, scale))
	add(fromTheLog(r, scale))
	for _, writers := range concurrency {
		add(wakeUp(r, scale, writers))
	}
	add(latency(r, scale, 200), latency(r, scale, 2000), silence(r, scale), idle(r, scale))
	for _, goroutines := range concurrency {
		add(inboxed(r, scale, goroutines))
	}
	add(failing(r, scale), memory(r, scale.SmallRows, 256, 64), memory(r, scale.LargeRows, 1<<20, 128))
	return all
}

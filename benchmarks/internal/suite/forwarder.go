package suite

import (
	"context"
	"fmt"
	"strings"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// batchSize is that of every side that has batches.
const batchSize = 500

// defaultWorkers is the forwarder's default.
const defaultWorkers = 2

// The names of sides, by which figures find them.
const (
	floor       = "floor: bare claim and delete"
	noOrder     = "forwarder, None, 1 worker"
	perKeyOne   = "forwarder, PerKey, 1 worker"
	perKeyFour  = "forwarder, PerKey, 4 workers"
	ourDefaults = "forwarder, defaults"
)

// forwarderFloor says what the forwarder costs beyond what has to be done.
func forwarderFloor(r rig.Rig, scale Scale, rows, payload int) compare.Comparison {
	size := sizeName(payload)
	atLeast := func(name, of string, target float64) compare.Figure {
		return compare.Figure{
			Name: fmt.Sprintf("forwarder no-op %s, %s ÷ floor", size, name),
			Of:   of, Over: floor, Bound: compare.AtLeast, Target: target,
		}
	}
	return compare.Comparison{
		Name:   strings.ToLower("forwarder-noop-" + size),
		Title:  fmt.Sprintf("Forwarder to a sink, %d rows of %s, batches of %d", rows, size, batchSize),
		Rounds: scale.Rounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, err := newOutbox(ctx, r, clean)
			if err != nil {
				return nil, err
			}
			d := drain{outbox: outbox, target: &target{}, load: rig.Load{Rows: rows, PayloadBytes: payload}}
			return []compare.Side{
				d.side(floor, bareLoop(batchSize)),
				d.side(noOrder, forward(forwarder.Config{Ordering: forwarder.None, Workers: 1, BatchSize: batchSize})),
				d.side(perKeyOne, forward(forwarder.Config{Workers: 1, BatchSize: batchSize})),
				d.side(perKeyFour, forward(forwarder.Config{Workers: 4, BatchSize: batchSize})),
			}, nil
		},
		Figures: []compare.Figure{
			atLeast("None, 1 worker", noOrder, 0.95),
			atLeast("PerKey, 1 worker", perKeyOne, 0.85),
			atLeast("PerKey, 4 workers", perKeyFour, 1.0),
		},
	}
}

// forwarderWatermill sets the forwarder beside Watermill's, to a sink.
func forwarderWatermill(r rig.Rig, scale Scale, payload int) compare.Comparison {
	rows, size := scale.StockBacklog, sizeName(payload)
	return compare.Comparison{
		Name:   strings.ToLower("forwarder-watermill-" + size),
		Title:  fmt.Sprintf("Forwarder beside Watermill's, to a sink, a backlog of %d rows of %s", rows, size),
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, err := newOutbox(ctx, r, clean)
			if err != nil {
				return nil, err
			}
			load := rig.Load{Rows: rows, PayloadBytes: payload}
			beside := stockDrain{outbox: outbox, target: &target{}, load: load}
			return []compare.Side{
				drain{outbox: outbox, target: &target{}, load: load}.side(ourDefaults, forward(forwarder.Config{})),
				beside.side(watermillDefault, tuning{}),
				beside.side(watermillTuned, best),
			}, nil
		},
		Figures: []compare.Figure{
			{
				Name: "forwarder no-op " + size + fmt.Sprintf(" ÷ Watermill tuned, backlog of %d", rows),
				Of:   ourDefaults, Over: watermillTuned, Bound: compare.AtLeast, Target: 6,
			},
			{
				Name: "forwarder no-op " + size + fmt.Sprintf(" ÷ Watermill default, backlog of %d", rows),
				Of:   ourDefaults, Over: watermillDefault,
			},
		},
	}
}

// forwarderBroker sets the forwarder between the broker fed directly, which is the most
// that can be, and Watermill's forwarder.
func forwarderBroker(r rig.Rig, far rig.FarEnd, scale Scale, rows, payload int, overWatermill float64) compare.Comparison {
	size := sizeName(payload)
	name := "forwarder " + far.Name() + " " + size
	ratio := func(over string, bound compare.Bound, target float64) compare.Figure {
		return compare.Figure{Name: name + " ÷ " + over, Of: ourDefaults, Over: over, Bound: bound, Target: target}
	}
	return compare.Comparison{
		Name: strings.ToLower("forwarder-" + far.Name() + "-" + size),
		Title: fmt.Sprintf("Forwarder to %s, every message confirmed, %d rows of %s (Watermill's: %d)",
			far.Name(), rows, size, scale.SingleRows),
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, to, err := outboxAndTarget(ctx, r, far, clean)
			if err != nil {
				return nil, err
			}
			load := rig.Load{Rows: rows, PayloadBytes: payload}
			beside := stockDrain{outbox: outbox, target: to, load: rig.Load{Rows: scale.SingleRows, PayloadBytes: payload}}
			return []compare.Side{
				drain{outbox: outbox, target: to, load: load}.side(ourDefaults, forward(forwarder.Config{})),
				direct{target: to, load: load, workers: defaultWorkers}.side(),
				beside.side(watermillDefault, tuning{}),
				beside.side(watermillTuned, best),
			}, nil
		},
		Figures: []compare.Figure{
			ratio(ceiling, compare.AtLeast, 0.9),
			ratio(watermillTuned, compare.AtLeast, overWatermill),
			ratio(watermillDefault, compare.Reported, 0),
		},
	}
}

func sizeName(bytes int) string {
	if bytes%bytesPerMiB == 0 {
		return fmt.Sprintf("%dMiB", bytes/bytesPerMiB)
	}
	if bytes%1024 == 0 {
		return fmt.Sprintf("%dKiB", bytes/1024)
	}
	return fmt.Sprintf("%dB", bytes)
}

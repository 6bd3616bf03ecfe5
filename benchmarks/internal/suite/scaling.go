package suite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// steps are how many workers or replicas there are.
var steps = []int{1, 2, 4, 8}

func scalingWorkers(r rig.Rig, scale Scale) compare.Comparison {
	return scaling(r, scale, "workers", func(n int) relay { return forward(forwarder.Config{Workers: n}) })
}

func scalingReplicas(r rig.Rig, scale Scale) compare.Comparison {
	return scaling(r, scale, "replicas", func(n int) relay {
		return func(ctx context.Context, o *rig.Outbox, pub rig.Publisher, ready func()) error {
			pool := func() (*sql.DB, error) { return rig.Open(o.DSN) }
			return replicas(ctx, n, pool, o, func(ctx context.Context, o *rig.Outbox) error {
				return forward(forwarder.Config{Workers: 1})(ctx, o, pub, ready)
			})
		}
	})
}

// replicas are forwarders with a pool each, as in processes of their own.
func replicas(
	ctx context.Context, n int, pool func() (*sql.DB, error), o *rig.Outbox, run func(ctx context.Context, o *rig.Outbox) error,
) error {
	group, ctx := errgroup.WithContext(ctx)
	for range n {
		group.Go(func() error {
			db, err := pool()
			if err != nil {
				return err
			}
			replica := *o
			replica.DB = db
			return errors.Join(run(ctx, &replica), db.Close())
		})
	}
	return group.Wait()
}

func scaling(r rig.Rig, scale Scale, what string, relayOf func(n int) relay) compare.Comparison {
	const keys = 100_000
	named := func(n int) string { return fmt.Sprintf("%d %s", n, what) }
	c := compare.Comparison{
		Name:   "scaling-" + what,
		Title:  fmt.Sprintf("Forwarder to a sink with more and more %s, %d rows, 100,000 keys", what, scale.Rows),
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, err := newOutbox(ctx, r, clean)
			if err != nil {
				return nil, err
			}
			d := drain{outbox: outbox, target: &target{}, load: rig.Load{Rows: scale.Rows, PayloadBytes: 256, Keys: keys}}
			var sides []compare.Side
			for _, n := range steps {
				sides = append(sides, d.side(named(n), relayOf(n)))
			}
			return sides, nil
		},
	}
	for _, n := range steps[1:] {
		c.Figures = append(c.Figures, compare.Figure{Name: named(n) + " ÷ 1", Of: named(n), Over: named(1)})
	}
	return c
}

// singleKeyRows are few, since they go one by one, and several batches.
const singleKeyRows = 4 * batchSize

// scalingKeys goes to a broker, since there the messages of a key go out one after another.
func scalingKeys(r rig.Rig, far rig.FarEnd, scale Scale) compare.Comparison {
	const (
		many   = "100,000 keys"
		some   = "100 keys"
		single = "a single key"
	)
	return compare.Comparison{
		Name: "scaling-keys",
		Title: fmt.Sprintf("Forwarder to %s by the number of keys, %d rows (a single key: %d)",
			far.Name(), scale.BrokerRows, singleKeyRows),
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, to, err := outboxAndTarget(ctx, r, far, clean)
			if err != nil {
				return nil, err
			}
			d := drain{outbox: outbox, target: to, load: rig.Load{Rows: scale.BrokerRows, PayloadBytes: 256}}
			spread := func(rows, keys int) drain {
				d.load.Rows, d.load.Keys = rows, keys
				return d
			}
			relay := forward(forwarder.Config{})
			return []compare.Side{
				spread(scale.BrokerRows, 100_000).side(many, relay),
				spread(scale.BrokerRows, 100).side(some, relay),
				spread(singleKeyRows, 1).side(single, relay),
			}, nil
		},
		Figures: []compare.Figure{
			{Name: some + " ÷ " + many, Of: some, Over: many},
			{Name: single + " ÷ " + many, Of: single, Over: many},
		},
	}
}

// hotKey says what the others pay for a key that has a tenth of all messages.
func hotKey(r rig.Rig, far rig.FarEnd, scale Scale) compare.Comparison {
	const (
		with    = "other keys beside a hot key"
		without = "other keys alone"
	)
	return compare.Comparison{
		Name:   "hot-key",
		Title:  fmt.Sprintf("Forwarder to %s, %d rows of other keys beside one with a tenth of all rows", far.Name(), scale.BrokerRows),
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, to, err := outboxAndTarget(ctx, r, far, clean)
			if err != nil {
				return nil, err
			}
			alone := drain{
				outbox: outbox, target: to, exceptHot: true,
				load: rig.Load{Rows: scale.BrokerRows, PayloadBytes: 256, Keys: 100_000},
			}
			beside := alone
			beside.load.HotEvery = 10
			beside.load.Rows = scale.BrokerRows * 10 / 9 // as many of the others
			relay := forward(forwarder.Config{})
			return []compare.Side{beside.side(with, relay), alone.side(without, relay)}, nil
		},
		Figures: []compare.Figure{{
			Name: "other keys beside a hot key ÷ without it", Of: with, Over: without, Bound: compare.AtLeast, Target: 0.9,
		}},
	}
}

func newOutbox(ctx context.Context, r rig.Rig, clean *compare.Cleanup) (*rig.Outbox, error) {
	outbox, err := r.NewOutbox(ctx)
	if err != nil {
		return nil, err
	}
	clean.Add(outbox.Close)
	return outbox, nil
}

func outboxAndTarget(ctx context.Context, r rig.Rig, far rig.FarEnd, clean *compare.Cleanup) (*rig.Outbox, *target, error) {
	outbox, err := newOutbox(ctx, r, clean)
	if err != nil {
		return nil, nil, err
	}
	to, err := newTarget(far, clean)
	return outbox, to, err
}

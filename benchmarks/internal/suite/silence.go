package suite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
)

// silence is the latency of the first event after a silence. Each side has many outboxes,
// each with a forwarder, all silent at once, so that there are enough first events.
func silence(r rig.Rig, scale Scale) compare.Comparison {
	name := fmt.Sprintf("first event after %s of silence", scale.Silence)
	return compare.Comparison{
		Name: "silence",
		Title: fmt.Sprintf("Latency of the first event after %s of silence, %d outboxes a side, from the commit to a RabbitMQ consumer",
			scale.Silence, silentOutboxes),
		Main:   p99,
		Unit:   "ms, 99 of 100 are faster",
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) (sides []compare.Side, err error) {
			for _, side := range []struct {
				name  string
				relay relay
			}{{ourDefaults, forwardDefault}, {withNotify, forwardOnNotify}} {
				var all []*silent
				for range silentOutboxes {
					one, err := newSilent(ctx, r, side.relay, clean)
					if err != nil {
						return nil, err
					}
					all = append(all, one)
				}
				sides = append(sides, compare.Side{Name: side.name, Round: func(ctx context.Context) (compare.Sample, error) {
					return firstEvents(ctx, all, scale.Silence)
				}})
			}
			return sides, nil
		},
		Figures: []compare.Figure{
			{Name: name + ", p99", Of: ourDefaults, Value: p99, Unit: "ms"},
			{
				Name: name + ", p99 ÷ unconditional NOTIFY",
				Of:   ourDefaults, Over: withNotify, Value: p99, Bound: compare.AtMost, Target: 4,
			},
		},
	}
}

// silentOutboxes is how many first events a round has. Each takes four connections at most
// of those that Postgres offers, which are 100 by default.
const silentOutboxes = 10

// silent is an outbox with its forwarder and its consumer.
type silent struct {
	outbox   *rig.Outbox
	receiver *rig.Receiver
	running  *rig.Running
	write    writeFunc
	lastAt   time.Time
}

func newSilent(ctx context.Context, r rig.Rig, run relay, clean *compare.Cleanup) (*silent, error) {
	outbox, to, err := outboxAndTarget(ctx, r, r.RabbitMQ(), clean)
	if err != nil {
		return nil, err
	}
	receiver, err := r.NewReceiver(ctx)
	if err != nil {
		return nil, err
	}
	clean.Add(receiver.Close)
	one := &silent{outbox: outbox, receiver: receiver, write: rawWrite(outbox.Schema.Outbox(), receiver.Queue, 1)}
	one.running = rig.Start(ctx, func(ctx context.Context) error { return run(ctx, outbox, to.pub, func() {}) })
	clean.Add(func(context.Context) error { return one.running.Stop() })
	return one, one.send(ctx) // connections are made, and whatever is done once
}

// send sends an event and waits until it is received.
func (s *silent) send(ctx context.Context) error {
	s.receiver.Reset()
	ids := []string{s.receiver.ID(1)}
	if err := inTransaction(ctx, s.outbox.DB, func(tx *sql.Tx) error { return s.write(ctx, tx, ids) }); err != nil {
		return err
	}
	s.receiver.Committed(1)
	s.lastAt = time.Now()
	return s.running.While(ctx, s.receiver.Await)
}

func firstEvents(ctx context.Context, all []*silent, quiet time.Duration) (sample compare.Sample, err error) {
	var delays []float64
	for _, one := range all {
		if err := sleepUntil(ctx, one.lastAt.Add(quiet)); err != nil {
			return sample, err
		}
		if err := one.send(ctx); err != nil {
			return sample, err
		}
		delay, lost := one.receiver.Delays()
		delays = append(delays, delay...)
		sample.Lost += lost
	}
	sample.Values = delayValues(delays)
	return sample, nil
}

package suite

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// brokerAway says what rows that wait for a broker that is away cost those that go to
// another one.
func brokerAway(r rig.Rig, scale Scale) compare.Comparison {
	const (
		with    = "beside rows that wait"
		without = "alone"
	)
	return compare.Comparison{
		Name:   "broker-away",
		Title:  fmt.Sprintf("Forwarder to a sink, %d rows, beside %d that wait for a broker that is away", scale.Rows, scale.Waiting),
		Rounds: scale.Rounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) (sides []compare.Side, err error) {
			for _, s := range []struct {
				name    string
				waiting int
			}{{with, scale.Waiting}, {without, 0}} {
				t, err := newTwoBrokers(ctx, r, s.waiting, clean)
				if err != nil {
					return nil, err
				}
				sides = append(sides, compare.Side{Name: s.name, Round: func(ctx context.Context) (compare.Sample, error) {
					return t.round(ctx, scale.Rows)
				}})
			}
			return sides, nil
		},
		Figures: []compare.Figure{{
			Name: fmt.Sprintf("%d rows waiting for a broker that is away, the other broker's rate ÷ without them", scale.Waiting),
			Of:   with, Over: without, Bound: compare.AtLeast, Target: 0.9,
		}},
	}
}

const (
	brokerUp   = "up"
	brokerDown = "down"
)

// twoBrokers is an outbox with a forwarder that runs all the time; one broker is away.
type twoBrokers struct {
	outbox  *rig.Outbox
	waiting int
	// up is changed for each round.
	up      atomic.Pointer[rig.Metered]
	running *rig.Running
}

func newTwoBrokers(ctx context.Context, r rig.Rig, waiting int, clean *compare.Cleanup) (*twoBrokers, error) {
	o, err := newOutbox(ctx, r, clean)
	if err != nil {
		return nil, err
	}
	t := &twoBrokers{outbox: o, waiting: waiting}
	if err := t.start(ctx); err != nil {
		return nil, err
	}
	clean.Add(func(context.Context) error { return t.running.Stop() })
	return t, nil
}

func (t *twoBrokers) start(ctx context.Context) error {
	if _, err := t.outbox.Fill(ctx, rig.Load{Rows: t.waiting, Destination: brokerDown, PayloadBytes: 256}); err != nil {
		return err
	}
	if err := t.outbox.Settle(ctx); err != nil {
		return err
	}
	routes, err := forwarder.NewRoutes(
		map[string]message.Publisher{brokerUp: batchFunc(t.publish), brokerDown: batchFunc(refuse)},
		[]forwarder.Route{{Destination: brokerDown, Broker: brokerDown}, {Destination: "*", Broker: brokerUp}})
	if err != nil {
		return err
	}
	f, err := forwarder.New(t.outbox.DB, routes, forwarder.Config{Schema: t.outbox.Schema}, nil)
	if err != nil {
		return err
	}
	t.running = rig.Start(ctx, f.Run)
	return nil
}

func (t *twoBrokers) round(ctx context.Context, rows int) (sample compare.Sample, err error) {
	// The rows and their tally are there in one moment, the publisher must know it before.
	load := rig.Load{Rows: rows, Destination: brokerUp, PayloadBytes: 256, Prefix: rig.NewPrefix()}
	tally := compare.NewTally(load.Prefix, rows)
	metered := rig.Metered{Publisher: rig.Sink{Tally: tally}, Meter: compare.NewMeter(rows)}
	t.up.Store(&metered)
	if _, err := t.outbox.Fill(ctx, load); err != nil {
		return sample, err
	}
	metered.Meter.Start()
	err = t.running.While(ctx, func(ctx context.Context) error {
		if err := metered.Meter.Wait(ctx, rig.Patience); err != nil {
			return err
		}
		return t.outbox.AwaitRows(ctx, t.waiting)
	})
	if err != nil {
		return sample, err
	}
	sample = metered.Meter.Sample()
	return sample, errors.Join(tally.Into(&sample), t.outbox.Settle(ctx))
}

func (t *twoBrokers) publish(ctx context.Context, msgs []forwarder.Outgoing) []error {
	return t.up.Load().PublishBatch(ctx, msgs)
}

var errDown = errors.New("connection refused")

func refuse(_ context.Context, msgs []forwarder.Outgoing) []error {
	results := make([]error, len(msgs))
	for i := range results {
		results[i] = forwarder.Unavailable(errDown)
	}
	return results
}

// batchFunc is a publisher that a function makes.
type batchFunc func(ctx context.Context, msgs []forwarder.Outgoing) []error

func (f batchFunc) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	return f(ctx, msgs)
}

func (f batchFunc) Publish(string, ...*message.Message) error {
	return errors.New("only PublishBatch is to be used")
}

func (f batchFunc) Close() error { return nil }

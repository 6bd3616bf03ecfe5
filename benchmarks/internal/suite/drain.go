package suite

import (
	"context"
	"errors"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// relay sends what is in the outbox to pub, until ctx ends. It calls ready once it has begun.
type relay func(ctx context.Context, o *rig.Outbox, pub rig.Publisher, ready func()) error

// forward is a relay: the forwarder of this project.
func forward(cfg forwarder.Config) relay {
	return func(ctx context.Context, o *rig.Outbox, pub rig.Publisher, ready func()) error {
		own := cfg
		own.Schema = o.Schema
		f, err := forwarder.New(o.DB, pub, own, nil)
		if err != nil {
			return err
		}
		go when(ctx, f.Running(), ready)
		return f.Run(ctx)
	}
}

// when calls ready after running is closed, unless ctx ends.
func when(ctx context.Context, running <-chan struct{}, ready func()) {
	select {
	case <-running:
		ready()
	case <-ctx.Done():
	}
}

// target is where the sides of a comparison send to, one after the other.
type target struct {
	far rig.FarEnd // nil: a sink
	pub rig.Publisher
	// open is the destination of the round, empty between rounds.
	open string
}

func newTarget(far rig.FarEnd, clean *compare.Cleanup) (*target, error) {
	pub, err := far.Publisher()
	if err != nil {
		return nil, err
	}
	t := &target{far: far, pub: pub}
	clean.Add(t.close)
	return t, nil
}

// close removes what a round has left that was broken off.
func (t *target) close(ctx context.Context) error { return errors.Join(t.pub.Close(), t.remove(ctx)) }

func (t *target) remove(ctx context.Context) error {
	if t.open == "" {
		return nil
	}
	err := t.far.Remove(ctx, t.open)
	t.open = ""
	return err
}

// destination makes one. A sink takes any.
func (t *target) destination(ctx context.Context) (name string, err error) {
	if t.far == nil {
		return "orders", nil
	}
	t.open, err = t.far.NewDestination(ctx)
	return t.open, err
}

func (t *target) publisher(tally *compare.Tally) rig.Publisher {
	if t.far == nil {
		return rig.Sink{Tally: tally}
	}
	return t.pub
}

// count writes into the sample what arrived at the far end.
func (t *target) count(ctx context.Context, tally *compare.Tally, sample *compare.Sample) error {
	if t.far != nil {
		if err := errors.Join(t.far.Count(ctx, t.open, tally), t.remove(ctx)); err != nil {
			return err
		}
	}
	return tally.Into(sample)
}

// drain is a side: the outbox is filled, and then the relay empties it.
type drain struct {
	outbox *rig.Outbox
	target *target
	load   rig.Load
	// before is called, if set, when the outbox is full; release, when it is empty.
	before func(ctx context.Context) (release func() error, err error)
	// after is called, if set, when the outbox is empty.
	after func(ctx context.Context, o *rig.Outbox, meter *compare.Meter, sample *compare.Sample) error
	// exceptHot leaves the messages of HotKey out of the rate.
	exceptHot bool
}

func (d drain) side(name string, r relay) compare.Side {
	return compare.Side{Name: name, Round: func(ctx context.Context) (compare.Sample, error) { return d.round(ctx, r) }}
}

func (d drain) round(ctx context.Context, r relay) (sample compare.Sample, err error) {
	if d.load.Destination, err = d.target.destination(ctx); err != nil {
		return sample, err
	}
	tally, err := d.outbox.Fill(ctx, d.load)
	if err != nil {
		return sample, err
	}
	if err := d.outbox.Settle(ctx); err != nil {
		return sample, err
	}
	sample, err = d.empty(ctx, r, tally)
	if err != nil {
		return sample, err
	}
	if err := d.target.count(ctx, tally, &sample); err != nil {
		return sample, err
	}
	return sample, d.outbox.Clear(ctx, 0)
}

// empty runs the relay until all is sent.
func (d drain) empty(ctx context.Context, r relay, tally *compare.Tally) (sample compare.Sample, err error) {
	if d.before != nil {
		release, beforeErr := d.before(ctx)
		if beforeErr != nil {
			return sample, beforeErr
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	metered := rig.Metered{Publisher: d.target.publisher(tally), Meter: compare.NewMeter(d.metered()), ExceptHot: d.exceptHot}
	running := rig.Start(ctx, func(ctx context.Context) error { return r(ctx, d.outbox, metered, metered.Meter.Start) })
	err = running.While(ctx, func(ctx context.Context) error {
		err := metered.Meter.Wait(ctx, rig.Patience)
		if err == nil && d.exceptHot { // the others are done, the hot ones may not be
			err = d.outbox.AwaitEmpty(ctx)
		}
		return err
	})
	if err := errors.Join(err, running.Stop()); err != nil {
		return sample, err
	}
	sample = metered.Meter.Sample()
	if d.after != nil {
		err = d.after(ctx, d.outbox, metered.Meter, &sample)
	}
	return sample, err
}

// metered is how many messages count.
func (d drain) metered() int {
	if d.exceptHot && d.load.HotEvery > 0 {
		return d.load.Rows - d.load.Rows/d.load.HotEvery
	}
	return d.load.Rows
}

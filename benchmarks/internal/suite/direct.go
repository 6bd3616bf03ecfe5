package suite

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

const ceiling = "ceiling: broker fed directly"

// direct is a side: the broker gets the same batches, as many at once, without a database.
type direct struct {
	target  *target
	load    rig.Load
	workers int
}

func (d direct) side() compare.Side { return compare.Side{Name: ceiling, Round: d.round} }

func (d direct) round(ctx context.Context) (sample compare.Sample, err error) {
	if d.load.Destination, err = d.target.destination(ctx); err != nil {
		return sample, err
	}
	tally := compare.NewTally(rig.NewPrefix(), d.load.Rows)
	batches := make(chan []forwarder.Outgoing, d.load.Rows/batchSize+1)
	for _, batch := range d.batches(tally) {
		batches <- batch
	}
	close(batches)
	meter := compare.NewMeter(d.load.Rows)
	pub := rig.Metered{Publisher: d.target.publisher(tally), Meter: meter}
	meter.Start()
	group, ctx := errgroup.WithContext(ctx)
	for range d.workers {
		group.Go(func() error {
			for batch := range batches {
				if err := errors.Join(pub.PublishBatch(ctx, batch)...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return sample, err
	}
	sample = meter.Sample()
	return sample, d.target.count(context.WithoutCancel(ctx), tally, &sample)
}

func (d direct) batches(tally *compare.Tally) (batches [][]forwarder.Outgoing) {
	payloads := rig.NewPayloads(d.load.PayloadBytes)
	for number := 1; number <= d.load.Rows; {
		var batch []forwarder.Outgoing
		for ; number <= d.load.Rows && len(batch) < batchSize; number++ {
			id := tally.ID(number)
			batch = append(batch, forwarder.Outgoing{
				Destination: d.load.Destination, PartitionKey: id, Message: message.NewMessage(id, []byte(payloads.Of(number))),
			})
		}
		batches = append(batches, batch)
	}
	return batches
}

package suite

import (
	"context"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// busy is an outbox with a forwarder of default settings that runs all the time.
type busy struct {
	outbox  *rig.Outbox
	sink    *rig.Counter
	running *rig.Running
}

func newBusy(ctx context.Context, r rig.Rig, clean *compare.Cleanup) (*busy, error) {
	o, err := newOutbox(ctx, r, clean)
	if err != nil {
		return nil, err
	}
	b := &busy{outbox: o, sink: &rig.Counter{}}
	f, err := forwarder.New(o.DB, b.sink, forwarder.Config{Schema: o.Schema, ListenDSN: o.DSN}, nil)
	if err != nil {
		return nil, err
	}
	b.running = rig.Start(ctx, f.Run)
	clean.Add(func(context.Context) error { return b.running.Stop() })
	return b, b.running.While(ctx, func(ctx context.Context) error {
		select {
		case <-f.Running():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

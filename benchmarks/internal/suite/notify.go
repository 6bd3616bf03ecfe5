package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// forwardDefault is the forwarder with default settings.
func forwardDefault(ctx context.Context, o *rig.Outbox, pub rig.Publisher, ready func()) error {
	return forward(forwarder.Config{ListenDSN: o.DSN})(ctx, o, pub, ready)
}

// forwardOnNotify is the forwarder, woken by what is the fastest and costs writers the
// most: each INSERT notifies. The outbox's own triggers are off meanwhile. It has one worker,
// which looks at everything: Wake wakes one, and two would share the lanes.
func forwardOnNotify(ctx context.Context, o *rig.Outbox, pub rig.Publisher, ready func()) (err error) {
	if err := o.Exec(ctx, notifyAlways(o)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Exec(context.WithoutCancel(ctx), notifyNoMore(o))) }()
	listener := pq.NewListener(o.DSN, time.Second, time.Minute, nil)
	defer func() { err = errors.Join(err, listener.Close()) }()
	if err := listener.Listen(o.Schema.Schema); err != nil {
		return err
	}
	f, err := forwarder.New(o.DB, pub, forwarder.Config{Schema: o.Schema, Workers: 1}, nil)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	go when(ctx, f.Running(), ready)
	group.Go(func() error { return f.Run(ctx) })
	group.Go(func() error {
		for {
			select {
			case <-listener.Notify:
				f.Wake()
			case <-ctx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}

// notifyAlways is in one transaction: the statements that are sent together.
func notifyAlways(o *rig.Outbox) string {
	return fmt.Sprintf(`
		ALTER TABLE %[1]s DISABLE TRIGGER USER;
		CREATE FUNCTION %[2]s.always() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN PERFORM pg_catalog.pg_notify('%[2]s', ''); RETURN NULL; END $$;
		CREATE TRIGGER always AFTER INSERT ON %[1]s FOR EACH STATEMENT EXECUTE FUNCTION %[2]s.always()`,
		o.Schema.Outbox(), o.Schema.Schema)
}

func notifyNoMore(o *rig.Outbox) string {
	return fmt.Sprintf(`DROP FUNCTION %[2]s.always() CASCADE; ALTER TABLE %[1]s ENABLE TRIGGER USER`, o.Schema.Outbox(), o.Schema.Schema)
}

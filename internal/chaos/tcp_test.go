package chaos_test

import (
	"context"
	"errors"
	"time"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// tcpFault is what happens to all that goes through a proxy.
type tcpFault struct {
	name string
	// hits says that batches may have been published and not settled.
	hits bool
	// breaks returns what mends it again.
	breaks func(w *world, p pair) (mend func(ctx context.Context) error, err error)
	lasts  time.Duration
}

var tcpFaultKinds = []tcpFault{
	{name: "latency", lasts: 2 * time.Second, breaks: func(w *world, p pair) (func(ctx context.Context) error, error) {
		slow := map[string]any{"latency": 40, "jitter": 20}
		return w.proxies.add(p, toxic{"latency", up, slow}, toxic{"latency", down, slow})
	}},
	{name: "refused", hits: true, lasts: time.Second, breaks: func(w *world, p pair) (func(ctx context.Context) error, error) {
		w.proxies.cut(p)
		return func(context.Context) error { return w.proxies.mend(p) }, nil
	}},
	{name: "reset", hits: true, lasts: time.Second, breaks: func(w *world, p pair) (func(ctx context.Context) error, error) {
		at := map[string]any{"timeout": 0}
		return w.proxies.add(p, toxic{"reset_peer", up, at}, toxic{"reset_peer", down, at})
	}},
	// Packets vanish in both directions, those of new connections too.
	{name: "half-open", hits: true, lasts: 3 * time.Second, breaks: func(w *world, p pair) (func(ctx context.Context) error, error) {
		never := map[string]any{"timeout": 0}
		return w.proxies.add(p, toxic{"timeout", up, never}, toxic{"timeout", down, never})
	}},
	// The request arrives, the answer does not.
	{name: "answers vanish", hits: true, lasts: 3 * time.Second, breaks: func(w *world, p pair) (func(ctx context.Context) error, error) {
		return w.proxies.add(p, toxic{"timeout", down, map[string]any{"timeout": 0}})
	}},
	{name: "cut in a request", hits: true, lasts: time.Second, breaks: func(w *world, p pair) (func(ctx context.Context) error, error) {
		return w.proxies.add(p, sever(up, 1500, false))
	}},
	{name: "cut in an answer", hits: true, lasts: time.Second, breaks: func(w *world, p pair) (func(ctx context.Context) error, error) {
		return w.proxies.add(p, sever(down, 300, false))
	}},
}

// tcpFaults are all kinds between all pairs.
func tcpFaults() (all []scenario) {
	for _, between := range []struct {
		pair    pair
		parties string
	}{
		{forwarderKafka, "forwarder and broker"},
		{forwarderPostgres, "forwarder and Postgres"},
		{writerPostgres, "writer and Postgres"},
		{consumerPostgres, "consumer and Postgres"},
		{consumerKafka, "consumer and broker"},
	} {
		for _, kind := range tcpFaultKinds {
			all = append(all, scenario{
				name: kind.name + ", " + between.parties,
				prepare: func(w *world) {
					w.config.Transactions = 120
					if !kind.hits || !isOfForwarder(between.pair) {
						patientPublisher(w) // nothing may be sent twice, however busy the machine is
					}
				},
				short:        len(all)%tcpShortEvery == 0,
				shortFromLog: kind.name == "reset" && between.pair == forwarderPostgres,
				tableOnly:    !isOfForwarder(between.pair),
				faults: func(ctx context.Context, w *world, c *ledger.Control) error {
					if err := c.Reach(ctx, 0.3); err != nil {
						return err
					}
					return w.breakFor(ctx, c, w.pair(between.pair), kind)
				},
			})
		}
	}
	return append(all, forgottenConnections(forwarderKafka), forgottenConnections(forwarderPostgres), slowBroker())
}

// tcpShortEvery has most kinds and pairs in the short form.
const tcpShortEvery = 9

func isOfForwarder(p pair) bool {
	return p == forwarderKafka || p == forwarderAMQP || p == forwarderPostgres
}

// breakFor returns when everything is forwarded that was written until the end of it.
func (w *world) breakFor(ctx context.Context, c *ledger.Control, p pair, kind tcpFault) error {
	if kind.hits && isOfForwarder(p) {
		c.HitAll()
	}
	mend, err := kind.breaks(w, p)
	if err != nil {
		return err
	}
	err = pause(ctx, kind.lasts)
	if err := errors.Join(err, mend(ctx)); err != nil {
		return err
	}
	return c.AwaitForwarded(ctx)
}

// forgottenConnections: a firewall between them forgets the connections that are there.
// Nobody hears of it, and new ones work.
func forgottenConnections(p pair) scenario {
	names := map[pair]string{forwarderKafka: "forwarder and broker", forwarderPostgres: "forwarder and Postgres"}
	return scenario{
		name: "connections forgotten, " + names[p],
		prepare: func(w *world) { // they bound how long an answer is waited for
			w.config.Forwarder.PublishTimeout, w.config.Forwarder.DatabaseTimeout = time.Second, 500*time.Millisecond
		},
		faults: func(ctx context.Context, w *world, c *ledger.Control) error {
			if err := c.Reach(ctx, 0.3); err != nil {
				return err
			}
			c.HitAll()
			mend, err := w.proxies.add(w.pair(p), sever(up, 0, true), sever(down, 0, true))
			if err != nil {
				return err
			}
			return errors.Join(w.goesOn(ctx, c), mend(ctx))
		},
	}
}

// goesOn returns when what is written from now on is forwarded.
func (w *world) goesOn(ctx context.Context, c *ledger.Control) error {
	if err := c.WriteMore(ctx, 40); err != nil {
		return err
	}
	return c.AwaitForwarded(ctx)
}

// slowBroker takes longer for a batch than PublishTimeout, and is the same afterwards:
// it has to be reached with less at a time.
func slowBroker() scenario {
	return scenario{
		name: "slow broker",
		prepare: func(w *world) {
			w.config.Forwarder.PublishTimeout = 500 * time.Millisecond
			w.config.Forwarder.BatchSize, w.config.Keys = 100, 200 // all of a batch goes out at once
		},
		faults: func(ctx context.Context, w *world, c *ledger.Control) error {
			if err := c.Reach(ctx, 0.3); err != nil {
				return err
			}
			for range 5 { // until it is small enough
				c.HitAll()
			}
			mend, err := w.proxies.add(w.pair(forwarderKafka), toxic{"bandwidth", up, map[string]any{"rate": 4}})
			if err != nil {
				return err
			}
			return errors.Join(w.goesOn(ctx, c), mend(ctx))
		},
	}
}

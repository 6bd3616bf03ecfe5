package chaos_test

import (
	"context"
	"errors"
	"strings"

	"github.com/watermill-outbox/outbox/internal/ledger"
)

// processFaults: forwarders die hard at each point, and hosts are lost without a word.
func processFaults() (all []scenario) {
	for i, at := range ledger.Points {
		all = append(all, killedAt(at, i%2 == 1))
	}
	for i, at := range []ledger.Point{ledger.AfterClaim, ledger.AfterPublish, ledger.InCommit} {
		all = append(all, hostLost(at, i == 0))
	}
	return all
}

func killedAt(at ledger.Point, short bool) scenario {
	return scenario{
		name:         "killed " + inWords(at),
		short:        short,
		shortFromLog: at == ledger.AfterPublish,
		variants:     []variant{{kafka, 4, false}, {rabbitmq, 1, true}, {rabbitmq, 4, true}, {kafka, 1, false}},
		full:         2, // one replica, and four
		faults: func(ctx context.Context, _ *world, c *ledger.Control) error {
			for _, share := range []float64{0.2, 0.4, 0.6, 0.8} {
				if err := c.Reach(ctx, share); err != nil {
					return err
				}
				if err := c.KillAt(ctx, at); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// hostLost: a replica stops with rows in hand, keeps its connections, and nothing that is
// sent on them arrives any more. Others take its rows once the database has had enough of
// it. Then it comes back as if no time had passed.
func hostLost(at ledger.Point, short bool) scenario {
	return scenario{
		name:     "host lost " + inWords(at),
		short:    short,
		variants: []variant{{rabbitmq, 4, false}, {kafka, 4, true}},
		prepare: func(w *world) {
			atLeisure(w)
			w.forwardersGoStraight()
		},
		faults: func(ctx context.Context, w *world, c *ledger.Control) error {
			if err := c.Reach(ctx, 0.3); err != nil {
				return err
			}
			lost, err := c.FreezeAt(ctx, at)
			if err != nil {
				return err
			}
			if err := w.servers.keeper.noteFrozen(lost.PID()); err != nil {
				return err
			}
			restore, err := w.dropPackets(ctx, lost.PID())
			if err != nil {
				return err
			}
			if err := errors.Join(w.goesOn(ctx, c), restore(ctx), lost.Thaw()); err != nil {
				return err
			}
			return c.WriteMore(ctx, 50)
		},
	}
}

func inWords(at ledger.Point) string { return strings.ReplaceAll(string(at), "_", " ") }

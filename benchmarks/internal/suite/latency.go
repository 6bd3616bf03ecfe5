package suite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
)

const (
	withNotify = "forwarder, woken by an unconditional NOTIFY"
	p50, p99   = "p50_ms", "p99_ms"
	longest    = "max_ms"
)

// latency is from the commit to the consumer, at a steady rate.
func latency(r rig.Rig, scale Scale, perSecond int) compare.Comparison {
	bound := compare.Reported
	if perSecond == 200 {
		bound = compare.AtMost
	}
	name := fmt.Sprintf("commit → consumer at %d/s, ", perSecond)
	figures := make([]compare.Figure, 1, 9)
	figures[0] = compare.Figure{Name: name + "max", Of: ourDefaults, Value: longest, Unit: "ms"}
	for _, quantile := range []struct{ name, value string }{{"p50", p50}, {"p99", p99}} {
		ratio := func(over, overName string, atMost float64) compare.Figure {
			return compare.Figure{
				Name: name + quantile.name + " ÷ " + overName,
				Of:   ourDefaults, Over: over, Value: quantile.value, Bound: bound, Target: atMost,
			}
		}
		figures = append(figures,
			compare.Figure{Name: name + quantile.name, Of: ourDefaults, Value: quantile.value, Unit: "ms"},
			ratio(withNotify, "unconditional NOTIFY", 4),
			ratio(watermillDefault, "Watermill default", 0.02),
			compare.Figure{
				Name: name + quantile.name + ", from the log ÷ from the table",
				Of:   fromLog, Over: ourDefaults, Value: quantile.value, Bound: bound, Target: 1,
			},
		)
	}
	return compare.Comparison{
		Name:   fmt.Sprintf("latency-%d", perSecond),
		Title:  fmt.Sprintf("From the commit to a RabbitMQ consumer at %d messages/s, one in a transaction, defaults", perSecond),
		Main:   p99,
		Unit:   "ms, 99 of 100 are faster",
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			return openLatency(ctx, r, steady{perSecond: perSecond, last: scale.Listening}, clean)
		},
		Figures: figures,
	}
}

func openLatency(ctx context.Context, r rig.Rig, s steady, clean *compare.Cleanup) ([]compare.Side, error) {
	outbox, to, err := outboxAndTarget(ctx, r, r.RabbitMQ(), clean)
	if err != nil {
		return nil, err
	}
	receiver, err := r.NewReceiver(ctx)
	if err != nil {
		return nil, err
	}
	clean.Add(receiver.Close)
	s.receiver, s.outbox = receiver, outbox
	raw := rawWrite(outbox.Schema.Outbox(), receiver.Queue, 1)
	relays := []struct {
		name  string
		relay relay
		begun func(ctx context.Context) error
	}{{ourDefaults, forwardDefault, nil}, {withNotify, forwardOnNotify, nil}, {fromLog, forwardFromLog, logged{outbox: outbox}.awaitReader}}
	var sides []compare.Side
	for _, side := range relays {
		sides = append(sides, compare.Side{Name: side.name, Round: func(ctx context.Context) (compare.Sample, error) {
			own := s
			own.begun = side.begun
			return own.round(ctx, raw, func(ctx context.Context) error { return side.relay(ctx, outbox, to.pub, func() {}) })
		}})
	}
	sides = append(sides, compare.Side{Name: watermillDefault, Round: func(ctx context.Context) (compare.Sample, error) {
		return s.stockRound(ctx, r)
	}})
	return sides, nil
}

// steady writes one message in a transaction at a steady rate.
type steady struct {
	outbox    *rig.Outbox
	receiver  *rig.Receiver
	perSecond int
	last      time.Duration
	// begun waits, if set, until what is measured has begun.
	begun func(ctx context.Context) error
}

// steadyWriters share the rate: a single one may not reach it.
const steadyWriters = 8

func (s steady) round(ctx context.Context, write writeFunc, run func(ctx context.Context) error) (sample compare.Sample, err error) {
	running := rig.Start(ctx, run)
	err = running.While(ctx, func(ctx context.Context) error { return s.measure(ctx, write, &sample) })
	return sample, errors.Join(err, running.Stop())
}

func (s steady) measure(ctx context.Context, write writeFunc, sample *compare.Sample) error {
	if s.begun != nil {
		if err := s.begun(ctx); err != nil {
			return err
		}
	}
	warm := s
	warm.last = time.Second / 2
	for _, phase := range []steady{warm, s} {
		s.receiver.Reset()
		if err := errors.Join(phase.write(ctx, write), s.receiver.Await(ctx)); err != nil {
			return err
		}
	}
	delays, lost := s.receiver.Delays()
	sample.Lost = lost
	sample.Values = delayValues(delays)
	return nil
}

func delayValues(delays []float64) map[string]float64 {
	if len(delays) == 0 {
		return nil
	}
	return map[string]float64{
		p50: compare.Quantile(0.5, delays), p99: compare.Quantile(0.99, delays), longest: compare.Quantile(1, delays),
		"messages": float64(len(delays)),
	}
}

func (s steady) write(ctx context.Context, write writeFunc) error {
	messages := int(s.last.Seconds() * float64(s.perSecond))
	every := time.Second / time.Duration(s.perSecond)
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for writer := range steadyWriters {
		group.Go(func() error {
			for number := writer + 1; number <= messages; number += steadyWriters {
				if err := sleepUntil(ctx, start.Add(time.Duration(number)*every)); err != nil {
					return err
				}
				ids := []string{s.receiver.ID(number)}
				if err := inTransaction(ctx, s.outbox.DB, func(tx *sql.Tx) error { return write(ctx, tx, ids) }); err != nil {
					return err
				}
				s.receiver.Committed(number)
			}
			return nil
		})
	}
	return group.Wait()
}

func sleepUntil(ctx context.Context, moment time.Time) error {
	timer := time.NewTimer(time.Until(moment))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stockRound is round for Watermill's outbox.
func (s steady) stockRound(ctx context.Context, r rig.Rig) (sample compare.Sample, err error) {
	outbox, err := newStock(s.outbox, tuning{})
	if err != nil {
		return sample, err
	}
	pub, err := r.RabbitMQ().Watermills(false)
	if err != nil {
		return sample, err
	}
	write := func(_ context.Context, tx *sql.Tx, ids []string) error {
		return outbox.publish(tx, s.receiver.Queue, messages(ids)...)
	}
	sample, err = s.round(ctx, write, func(ctx context.Context) error { return outbox.forward(ctx, pub, func() {}) })
	return sample, errors.Join(err, pub.Close(), outbox.drop(ctx))
}

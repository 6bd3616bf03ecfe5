package suite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

const (
	databaseCPU   = "database_cpu_percent"
	forwarderCPU  = "forwarder_cpu_percent"
	walBytes      = "wal_bytes"
	statementRate = "statements_per_second"
)

// idle is what forwarders cost while there is nothing to do.
func idle(r rig.Rig, scale Scale) compare.Comparison {
	named := func(replicas int) string { return fmt.Sprintf("replicas: %d", replicas) }
	const looking = "replicas: 1, without ListenDSN"
	c := compare.Comparison{
		Name:   "idle",
		Title:  fmt.Sprintf("Idle for %s, defaults and ListenDSN", scale.Idle),
		Main:   databaseCPU,
		Unit:   "% of a core",
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			database, err := r.NewDatabase(ctx)
			if err != nil {
				return nil, err
			}
			clean.Add(database.Close)
			outbox, err := newOutbox(ctx, database.Rig, clean)
			if err != nil {
				return nil, err
			}
			if err := database.Settle(ctx); err != nil {
				return nil, err
			}
			var sides []compare.Side
			for _, n := range []int{1, 3} {
				sides = append(sides, compare.Side{Name: named(n), Round: func(ctx context.Context) (compare.Sample, error) {
					return idleRound(ctx, database, outbox, n, forwardDefault, scale.Idle)
				}})
			}
			sides = append(sides, compare.Side{Name: looking, Round: func(ctx context.Context) (compare.Sample, error) {
				return idleRound(ctx, database, outbox, 1, forward(forwarder.Config{}), scale.Idle)
			}})
			return sides, nil
		},
	}
	for _, side := range []string{named(1), named(3), looking} {
		figure := func(what, value, unit string, bound compare.Bound, target float64) compare.Figure {
			if side == looking {
				bound, target = compare.Reported, 0
			}
			return compare.Figure{
				Name: fmt.Sprintf("idle, %s: %s", side, what), Of: side, Value: value, Unit: unit, Bound: bound, Target: target,
			}
		}
		c.Figures = append(c.Figures,
			figure("CPU of the database", databaseCPU, "% of a core", compare.AtMost, 0.5),
			figure("write-ahead log", walBytes, "bytes", compare.AtMost, 0),
			figure("CPU of the forwarders", forwarderCPU, "% of a core", compare.Reported, 0),
			figure("statements", statementRate, "a second", compare.Reported, 0),
		)
	}
	return c
}

// fallAsleep is enough for what a forwarder does once at its start.
const fallAsleep = 2 * time.Second

func idleRound(
	ctx context.Context, d *rig.Database, o *rig.Outbox, n int, runs relay, last time.Duration,
) (sample compare.Sample, err error) {
	var statements atomic.Int64
	running := rig.Start(ctx, func(ctx context.Context) error {
		pool := func() (*sql.DB, error) { return rig.OpenCounted(o.DSN, &statements) }
		return replicas(ctx, n, pool, o, func(ctx context.Context, o *rig.Outbox) error {
			return runs(ctx, o, &rig.Counter{}, func() {})
		})
	})
	err = running.While(ctx, func(ctx context.Context) (err error) {
		if err := sleepUntil(ctx, time.Now().Add(fallAsleep)); err != nil {
			return err
		}
		sample.Values, err = idleValues(ctx, d, &statements, last)
		return err
	})
	return sample, errors.Join(err, running.Stop())
}

func idleValues(ctx context.Context, d *rig.Database, statements *atomic.Int64, last time.Duration) (map[string]float64, error) {
	begin, err := usage(ctx, d, statements)
	if err != nil {
		return nil, err
	}
	if err := sleepUntil(ctx, begin.at.Add(last)); err != nil {
		return nil, err
	}
	end, err := usage(ctx, d, statements)
	if err != nil {
		return nil, err
	}
	took := end.at.Sub(begin.at)
	values := map[string]float64{
		forwarderCPU:  percent(end.own-begin.own, took),
		statementRate: float64(end.statements-begin.statements) / took.Seconds(),
	}
	if begin.KnownCPU && end.KnownCPU {
		values[databaseCPU] = percent(end.CPU-begin.CPU, took)
	}
	written, known, err := d.Written(ctx, begin.Position, end.Position)
	if known {
		values[walBytes] = written
	}
	return values, err
}

type allUsage struct {
	rig.Usage

	at         time.Time
	own        time.Duration
	statements int64
}

func usage(ctx context.Context, d *rig.Database, statements *atomic.Int64) (u allUsage, err error) {
	if u.Usage, err = d.Usage(ctx); err != nil {
		return u, err
	}
	self, err := process.NewProcessWithContext(ctx, int32(os.Getpid())) //nolint:gosec // a process id fits
	if err != nil {
		return u, err
	}
	if u.own, err = rig.CPUOf(ctx, self); err != nil {
		return u, err
	}
	u.at, u.statements = time.Now(), statements.Load()
	return u, nil
}

func percent(used, of time.Duration) float64 { return 100 * used.Seconds() / of.Seconds() }

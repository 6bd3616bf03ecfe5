package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/schema"
)

// DrainCommand is the argument with which this program runs Drain, as a process of its own.
const DrainCommand = "drain"

// drained is what a drain process says at its end.
type drained struct {
	Lost       int `json:"lost"`
	Duplicates int `json:"duplicates"`
	PeakBytes  int `json:"peak_bytes"`
}

// memory is the most that a process takes that does nothing but drain an outbox.
func memory(r rig.Rig, rows, payload int, atMostMiB float64) compare.Comparison {
	const (
		process  = "forwarder in a process of its own, defaults"
		resident = "resident_mib"
	)
	size := sizeName(payload)
	return compare.Comparison{
		Name:   strings.ToLower("memory-" + size),
		Title:  fmt.Sprintf("Resident memory while %d rows of %s are drained to a sink", rows, size),
		Main:   resident,
		Unit:   "MiB",
		Rounds: 1,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, err := newOutbox(ctx, r, clean)
			if err != nil {
				return nil, err
			}
			return []compare.Side{{Name: process, Round: func(ctx context.Context) (sample compare.Sample, err error) {
				load := rig.Load{Rows: rows, PayloadBytes: payload, Destination: "orders", Prefix: rig.NewPrefix()}
				if _, err := outbox.Fill(ctx, load); err != nil {
					return sample, err
				}
				said, err := startDrain(ctx, outbox, load)
				if err != nil {
					return sample, err
				}
				sample.Lost, sample.Duplicates = said.Lost, said.Duplicates
				sample.Values = map[string]float64{resident: float64(said.PeakBytes) / bytesPerMiB}
				return sample, outbox.Clear(ctx, 0)
			}}}, nil
		},
		Figures: []compare.Figure{{
			Name: fmt.Sprintf("resident memory draining %d rows of %s", rows, size),
			Of:   process, Value: resident, Unit: "MiB", Bound: compare.AtMost, Target: atMostMiB,
		}},
	}
}

// The names of the environment variables by which Drain is told what to do.
const (
	drainDSN    = "BENCH_DRAIN_DSN"
	drainSchema = "BENCH_DRAIN_SCHEMA"
	drainPrefix = "BENCH_DRAIN_PREFIX"
	drainRows   = "BENCH_DRAIN_ROWS"
)

func startDrain(ctx context.Context, o *rig.Outbox, load rig.Load) (said drained, err error) {
	program, err := os.Executable()
	if err != nil {
		return said, err
	}
	command := exec.CommandContext(ctx, program, DrainCommand) //nolint:gosec // this very program
	command.Env = append(os.Environ(),
		drainDSN+"="+o.DSN, drainSchema+"="+o.Schema.Schema, drainPrefix+"="+load.Prefix, drainRows+"="+strconv.Itoa(load.Rows))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return said, fmt.Errorf("the draining process: %w", err)
	}
	return said, json.Unmarshal(out, &said)
}

// Drain drains the outbox that the environment names, and says how much memory that took.
func Drain(ctx context.Context, out io.Writer) (err error) {
	rows, err := strconv.Atoi(os.Getenv(drainRows))
	if err != nil {
		return err
	}
	db, err := rig.Open(os.Getenv(drainDSN))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tally := compare.NewTally(os.Getenv(drainPrefix), rows)
	metered := rig.Metered{Publisher: rig.Sink{Tally: tally}, Meter: compare.NewMeter(rows)}
	f, err := forwarder.New(db, metered, forwarder.Config{Schema: schema.Postgres{Schema: os.Getenv(drainSchema)}}, nil)
	if err != nil {
		return err
	}
	metered.Meter.Start()
	running := rig.Start(ctx, f.Run)
	err = running.While(ctx, func(ctx context.Context) error { return metered.Meter.Wait(ctx, rig.Patience) })
	if err := errors.Join(err, running.Stop()); err != nil {
		return err
	}
	var sample compare.Sample
	if err := tally.Into(&sample); err != nil {
		return err
	}
	peak, err := rig.PeakMemory()
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(drained{Lost: sample.Lost, Duplicates: sample.Duplicates, PeakBytes: peak})
}

package suite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

const (
	freely       = "nobody else on the database"
	oldSnapshot  = "another transaction holds an old snapshot"
	lastByFirst  = "last_tenth_by_first"
	firstTenth   = "first_tenth_per_second"
	lastTenth    = "last_tenth_per_second"
	deadTuples   = "dead_tuples"
	tableSize    = "table_mib"
	indexSize    = "indexes_mib"
	bytesPerMiB  = 1 << 20
	backlogBytes = 256
	million      = 1_000_000
)

// backlog says whether a long drain slows down on what it leaves behind.
func backlog(r rig.Rig, scale Scale, rows int) compare.Comparison {
	bound, rounds := compare.AtLeast, min(2, scale.FewRounds)
	if rows < million {
		bound, rounds = compare.Reported, scale.FewRounds
	}
	return compare.Comparison{
		Name:   fmt.Sprintf("backlog-%d", rows),
		Title:  fmt.Sprintf("Backlog of %d rows of %d B to a sink, defaults", rows, backlogBytes),
		Rounds: rounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, err := newOutbox(ctx, r, clean)
			if err != nil {
				return nil, err
			}
			plain := drain{outbox: outbox, target: &target{}, load: rig.Load{Rows: rows, PayloadBytes: backlogBytes}, after: tenths}
			watched := plain
			watched.before = func(ctx context.Context) (func() error, error) { return holdSnapshot(ctx, outbox.DB) }
			return []compare.Side{
				plain.side(freely, forward(forwarder.Config{})),
				watched.side(oldSnapshot, forward(forwarder.Config{})),
			}, nil
		},
		Figures: []compare.Figure{
			{
				Name: fmt.Sprintf("last ÷ first tenth of %d rows", rows),
				Of:   freely, Value: lastByFirst, Bound: bound, Target: 0.9,
			},
			{
				Name: fmt.Sprintf("last ÷ first tenth of %d rows, an old snapshot held", rows),
				Of:   oldSnapshot, Value: lastByFirst, Bound: bound, Target: 0.85,
			},
		},
	}
}

// holdSnapshot keeps VACUUM, and the marks in indexes, from forgetting what is deleted from
// now on.
func holdSnapshot(ctx context.Context, db *sql.DB) (release func() error, err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `SELECT`); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx.Rollback, nil
}

// tenths notes the rates of the first and the last tenth, and what is left behind.
func tenths(ctx context.Context, o *rig.Outbox, meter *compare.Meter, sample *compare.Sample) error {
	first, last := perSecond(meter.Part(0, 0.1)), perSecond(meter.Part(0.9, 1))
	left, err := o.LeftBehind(ctx)
	if err != nil {
		return err
	}
	sample.Values = map[string]float64{
		firstTenth: first, lastTenth: last, lastByFirst: last / first,
		deadTuples: left.DeadTuples, tableSize: left.TableBytes / bytesPerMiB, indexSize: left.IndexBytes / bytesPerMiB,
	}
	return nil
}

func perSecond(s compare.Sample) float64 { return float64(s.Messages) / s.Took.Seconds() }

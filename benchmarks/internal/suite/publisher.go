package suite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
	"golang.org/x/sync/errgroup"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
)

const (
	rawInsert       = "raw INSERT"
	ourPublisher    = "publisher"
	stockPublisher  = "watermill-sql's publisher, enveloped"
	publishedSize   = 256
	publishedTarget = "orders"
)

// writeFunc writes messages in tx. It is called from several goroutines at once.
type writeFunc func(ctx context.Context, tx *sql.Tx, ids []string) error

// publisher sets the publisher beside the statement that it cannot do without.
func publisher(r rig.Rig, scale Scale, writers, inTx int) compare.Comparison {
	bound, atLeast := compare.Reported, 0.0
	switch {
	case inTx > 1:
		bound, atLeast = compare.AtLeast, 0.9
	case writers == 16:
		bound, atLeast = compare.AtLeast, 0.97
	}
	name := fmt.Sprintf("publisher, %d in a transaction, %d writers", inTx, writers)
	return compare.Comparison{
		Name:   fmt.Sprintf("publisher-%d-in-tx-%d-writers", inTx, writers),
		Title:  fmt.Sprintf("Publisher, messages of %d B, %d in a transaction, %d writers", publishedSize, inTx, writers),
		Rounds: scale.Rounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			o, err := newOutbox(ctx, r, clean)
			if err != nil {
				return nil, err
			}
			ours, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: o.Schema}, nil)
			if err != nil {
				return nil, err
			}
			beside, err := newStock(o, tuning{})
			if err != nil {
				return nil, err
			}
			w := writing{outbox: o, table: o.Schema.Outbox(), writers: writers, inTx: inTx, last: scale.Writing}
			stockWriting := w
			stockWriting.table = beside.adapter.MessagesTable(beside.topic)
			return []compare.Side{
				w.side(rawInsert, rawWrite(o.Schema.Outbox(), publishedTarget, inTx)),
				w.side(ourPublisher, func(ctx context.Context, tx *sql.Tx, ids []string) error {
					return ours.PublishTx(ctx, tx, publishedTarget, messages(ids)...)
				}),
				stockWriting.side(stockPublisher, func(_ context.Context, tx *sql.Tx, ids []string) error {
					return beside.publish(tx, publishedTarget, messages(ids)...)
				}),
			}, nil
		},
		Figures: []compare.Figure{
			{Name: name + " ÷ " + rawInsert, Of: ourPublisher, Over: rawInsert, Bound: bound, Target: atLeast},
			{Name: name + " ÷ " + stockPublisher, Of: ourPublisher, Over: stockPublisher},
		},
	}
}

var publishedPayload = []byte(strings.Repeat("x", publishedSize))

func messages(ids []string) []*message.Message {
	msgs := make([]*message.Message, len(ids))
	for i, id := range ids {
		msgs[i] = message.NewMessage(id, publishedPayload)
	}
	return msgs
}

// rawWrite is what somebody would write by hand: the three columns, a row or an unnest.
func rawWrite(table, destination string, inTx int) writeFunc {
	into := `INSERT INTO ` + table + ` (id, destination, payload) `
	if inTx == 1 {
		return func(ctx context.Context, tx *sql.Tx, ids []string) error {
			_, err := tx.ExecContext(ctx, into+`VALUES ($1, $2, $3)`, ids[0], destination, string(publishedPayload))
			return err
		}
	}
	return func(ctx context.Context, tx *sql.Tx, ids []string) error {
		payloads := make([]string, len(ids))
		for i := range payloads {
			payloads[i] = string(publishedPayload)
		}
		_, err := tx.ExecContext(ctx, into+`SELECT m.id, $2, m.payload FROM unnest($1::text[], $3::text[]) AS m (id, payload)`,
			pq.StringArray(ids), destination, pq.StringArray(payloads))
		return err
	}
}

// writing is a side: so many writers write for so long.
type writing struct {
	outbox  *rig.Outbox
	table   string
	writers int
	inTx    int
	last    time.Duration
}

func (w writing) side(name string, write writeFunc) compare.Side {
	return compare.Side{Name: name, Round: func(ctx context.Context) (compare.Sample, error) { return w.round(ctx, write) }}
}

// round counts in the table what has arrived, and leaves the table empty.
func (w writing) round(ctx context.Context, write writeFunc) (sample compare.Sample, err error) {
	written, took, err := w.write(ctx, write)
	if err != nil {
		return sample, err
	}
	arrived, err := w.outbox.Number(ctx, `SELECT count(*) FROM `+w.table)
	if err != nil {
		return sample, err
	}
	sample = compare.Sample{Messages: written, Took: took, Lost: written - int(arrived)}
	return sample, w.outbox.Exec(ctx, `TRUNCATE `+w.table)
}

func (w writing) write(ctx context.Context, write writeFunc) (written int, took time.Duration, err error) {
	prefix := compare.NewTally(rig.NewPrefix(), 0)
	var numbers, committed atomic.Int64
	start := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	for range w.writers {
		group.Go(func() error {
			for time.Since(start) < w.last {
				ids := make([]string, w.inTx)
				for i := range ids {
					ids[i] = prefix.ID(int(numbers.Add(1)))
				}
				err := inTransaction(groupCtx, w.outbox.DB, func(tx *sql.Tx) error { return write(groupCtx, tx, ids) })
				if err != nil {
					return err
				}
				committed.Add(int64(w.inTx))
			}
			return nil
		})
	}
	err = group.Wait()
	return int(committed.Load()), time.Since(start), err
}

// wakeUp says what writers pay for waking the forwarder.
func wakeUp(r rig.Rig, scale Scale, writers int) compare.Comparison {
	const (
		with    = "with the default wake-up"
		without = "without"
	)
	return compare.Comparison{
		Name:   fmt.Sprintf("wakeup-%d-writers", writers),
		Title:  fmt.Sprintf("Writers beside a running forwarder, with and without the wake-up, %d writers", writers),
		Rounds: scale.Rounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) (sides []compare.Side, err error) {
			for _, name := range []string{with, without} {
				b, err := newBusy(ctx, r, clean)
				if err != nil {
					return nil, err
				}
				table := b.outbox.Schema.Outbox()
				if name == without {
					if err := b.outbox.Exec(ctx, `ALTER TABLE `+table+` DISABLE TRIGGER USER`); err != nil {
						return nil, err
					}
				}
				w := writing{outbox: b.outbox, writers: writers, inTx: 1, last: scale.Writing}
				sides = append(sides, compare.Side{Name: name, Round: func(ctx context.Context) (compare.Sample, error) {
					return w.besideForwarder(ctx, b, rawWrite(table, publishedTarget, 1))
				}})
			}
			return sides, nil
		},
		Figures: []compare.Figure{{
			Name: fmt.Sprintf("writers with the default wake-up ÷ without, %d writers", writers),
			Of:   with, Over: without, Bound: compare.AtLeast, Target: 0.95,
		}},
	}
}

// besideForwarder counts at the sink what has arrived.
func (w writing) besideForwarder(ctx context.Context, b *busy, write writeFunc) (sample compare.Sample, err error) {
	before := b.sink.Received()
	sample.Messages, sample.Took, err = w.write(ctx, write)
	if err := errors.Join(err, b.running.While(ctx, b.outbox.AwaitEmpty)); err != nil {
		return sample, err
	}
	missing := sample.Messages - (b.sink.Received() - before)
	sample.Lost, sample.Duplicates = max(0, missing), max(0, -missing)
	return sample, nil
}

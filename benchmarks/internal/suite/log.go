package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
)

const (
	fromLog    = "forwarder, from the write-ahead log"
	bareDecode = "bare loop that decodes the log"
)

// fromTheLog sets a forwarder that takes its rows from the write-ahead log beside a loop that does
// nothing but decode it.
func fromTheLog(r rig.Rig, scale Scale) compare.Comparison {
	const payload = 256
	return compare.Comparison{
		Name:   "log",
		Title:  fmt.Sprintf("Forwarder from the write-ahead log to a sink, %d rows of 256B, 100 in a transaction", scale.Rows),
		Rounds: scale.FewRounds,
		Open: func(ctx context.Context, clean *compare.Cleanup) ([]compare.Side, error) {
			outbox, err := newOutbox(ctx, r, clean)
			if err != nil {
				return nil, err
			}
			l := logged{outbox: outbox, load: rig.Load{Rows: scale.Rows, PayloadBytes: payload, Destination: "orders"}}
			return []compare.Side{{Name: fromLog, Round: l.forwarded}, {Name: bareDecode, Round: l.decoded}}, nil
		},
		Figures: []compare.Figure{{
			Name: "forwarder from the log ÷ decoding alone", Of: fromLog, Over: bareDecode, Bound: compare.AtLeast, Target: 0.8,
		}},
	}
}

type logged struct {
	outbox *rig.Outbox
	load   rig.Load
}

func newSource(o *rig.Outbox) (*wal.Source, error) {
	name := o.Schema.Schema
	return wal.New(wal.Config{
		Schema: o.Schema, ReplicationDSN: o.DSN, Slot: name, Publication: name, AcceptUnboundedWAL: true,
	}, nil)
}

// dropSlot is for after the round: a slot keeps the log.
func dropSlot(ctx context.Context, o *rig.Outbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rig.Patience)
	defer cancel()
	for {
		err := o.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, o.Schema.Schema)
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, o.Exec(ctx, `DROP PUBLICATION IF EXISTS `+o.Schema.Schema))
		}
		if err := sleepUntil(ctx, time.Now().Add(logPause)); err != nil { // its reader is about to go
			return err
		}
	}
}

const logPause = 100 * time.Millisecond

// forwardFromLog is a relay.
func forwardFromLog(ctx context.Context, o *rig.Outbox, pub rig.Publisher, ready func()) (err error) {
	source, err := newSource(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dropSlot(ctx, o)) }()
	return forward(forwarder.Config{Source: source})(ctx, o, pub, ready)
}

// forwarded fills the outbox while the forwarder streams and its publisher waits: what it finds in the
// table when it begins, it does not take from the log.
func (l logged) forwarded(ctx context.Context) (sample compare.Sample, err error) {
	load := l.load
	load.Prefix = rig.NewPrefix()
	tally := compare.NewTally(load.Prefix, load.Rows)
	metered := rig.Metered{Publisher: rig.Sink{Tally: tally}, Meter: compare.NewMeter(load.Rows)}
	running := rig.Start(ctx, func(ctx context.Context) error { return forwardFromLog(ctx, l.outbox, metered, func() {}) })
	err = running.While(ctx, func(ctx context.Context) error {
		if err := errors.Join(l.awaitReader(ctx), l.fill(ctx, load)); err != nil {
			return err
		}
		metered.Meter.Start()
		return errors.Join(metered.Meter.Wait(ctx, rig.Patience), l.outbox.AwaitEmpty(ctx))
	})
	if err := errors.Join(err, running.Stop()); err != nil {
		return sample, err
	}
	sample = metered.Meter.Sample()
	return sample, errors.Join(tally.Into(&sample), l.outbox.Clear(ctx, 0))
}

// awaitReader returns a moment after the slot has a reader, when the table was found to be empty.
func (l logged) awaitReader(ctx context.Context) error {
	for {
		readers, err := l.outbox.Number(ctx,
			`SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = '`+l.outbox.Schema.Schema+`'`)
		if err != nil {
			return err
		}
		if err := sleepUntil(ctx, time.Now().Add(5*logPause)); err != nil {
			return err
		}
		if readers > 0 {
			return nil
		}
	}
}

// fill writes 100 rows in a transaction.
func (l logged) fill(ctx context.Context, load rig.Load) error {
	const inTx = 100
	return l.outbox.Exec(ctx, fmt.Sprintf(`DO $fill$ BEGIN
		FOR i IN 0..%d LOOP
			INSERT INTO %s (id, destination, payload)
				SELECT '%s' || lpad(n::text, 12, '0'), '%s', repeat(md5(n::text), %d)
				FROM generate_series(i * %[6]d + 1, (i + 1) * %[6]d) AS n;
			COMMIT;
		END LOOP;
	END $fill$`, load.Rows/inTx-1, l.outbox.Schema.Outbox(), load.Prefix, load.Destination, load.PayloadBytes/32, inTx))
}

// decoded reads the same from a slot of its own.
func (l logged) decoded(ctx context.Context) (sample compare.Sample, err error) {
	source, err := newSource(l.outbox)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, dropSlot(ctx, l.outbox)) }()
	load := l.load
	load.Prefix = rig.NewPrefix()
	if err := errors.Join(source.Prepare(ctx), l.fill(ctx, load)); err != nil {
		return sample, err
	}
	began := time.Now()
	sample.Messages, err = l.decode(ctx, load.Rows)
	sample.Took = time.Since(began)
	return sample, errors.Join(err, l.outbox.Clear(ctx, load.Rows))
}

// decode counts inserts, and confirms nothing.
func (l logged) decode(ctx context.Context, want int) (rows int, err error) {
	config, err := pgconn.ParseConfig(l.outbox.DSN)
	if err != nil {
		return 0, errors.New("POSTGRES_DSN is not for pgx") // the error would show the password
	}
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	name := l.outbox.Schema.Schema
	err = pglogrepl.StartReplication(ctx, conn, name, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{`proto_version '1'`, `publication_names '` + name + `'`, `binary 'true'`},
	})
	for err == nil && rows < want {
		var received pgproto3.BackendMessage
		if received, err = conn.ReceiveMessage(ctx); err != nil {
			break
		}
		data, isData := received.(*pgproto3.CopyData)
		if !isData || data.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		var part pglogrepl.XLogData
		if part, err = pglogrepl.ParseXLogData(data.Data[1:]); err != nil {
			break
		}
		var message pglogrepl.Message
		if message, err = pglogrepl.Parse(part.WALData); err != nil {
			break
		}
		if message.Type() == pglogrepl.MessageTypeInsert {
			rows++
		}
	}
	return rows, err
}

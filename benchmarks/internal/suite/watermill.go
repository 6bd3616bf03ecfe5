package suite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wmforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
)

const (
	watermillDefault = "Watermill's forwarder, defaults"
	watermillTuned   = "Watermill's forwarder, tuned"
)

// tuning is that of watermill-sql. The zero value is its defaults.
type tuning struct {
	batchSize    int
	pollInterval time.Duration
	payloadType  string
}

// best is what was found to be fastest: the whole backlog in one batch, no parsing of JSON by
// the database, and no pause between batches that matters.
var best = tuning{batchSize: 20_000, pollInterval: 10 * time.Millisecond, payloadType: "BYTEA"}

func (t tuning) schema() wmsql.DefaultPostgreSQLSchema {
	adapter := wmsql.DefaultPostgreSQLSchema{SubscribeBatchSize: t.batchSize}
	if t.payloadType != "" {
		adapter.GeneratePayloadType = func(string) string { return t.payloadType }
	}
	return adapter
}

// stock is Watermill's outbox: watermill-sql with the forwarder's envelope, in the
// Postgres schema of an outbox of ours.
type stock struct {
	outbox  *rig.Outbox
	tuning  tuning
	topic   string
	adapter wmsql.DefaultPostgreSQLSchema
	offsets wmsql.DefaultPostgreSQLOffsetsAdapter
}

func newStock(o *rig.Outbox, t tuning) (*stock, error) {
	s := &stock{outbox: o, tuning: t, topic: rig.NewName(), adapter: t.schema()}
	subscriber, err := s.subscriber()
	if err != nil {
		return nil, err
	}
	return s, errors.Join(subscriber.SubscribeInitialize(s.topic), subscriber.Close())
}

func (s *stock) subscriber() (*wmsql.Subscriber, error) {
	return wmsql.NewSubscriber(s.outbox.DB, wmsql.SubscriberConfig{
		SchemaAdapter: s.adapter, OffsetsAdapter: s.offsets, PollInterval: s.tuning.pollInterval,
	}, watermill.NopLogger{})
}

// publish writes messages in tx, in the forwarder's envelope.
func (s *stock) publish(tx *sql.Tx, destination string, msgs ...*message.Message) error {
	publisher, err := wmsql.NewPublisher(tx, wmsql.PublisherConfig{SchemaAdapter: s.adapter}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return wmforwarder.NewPublisher(publisher, wmforwarder.PublisherConfig{ForwarderTopic: s.topic}).Publish(destination, msgs...)
}

// fill writes the load, 100 messages in a transaction.
func (s *stock) fill(ctx context.Context, load rig.Load) (*compare.Tally, error) {
	const inTx = 100
	tally := compare.NewTally(rig.NewPrefix(), load.Rows)
	payloads := rig.NewPayloads(load.PayloadBytes)
	for number := 1; number <= load.Rows; {
		var msgs []*message.Message
		for ; number <= load.Rows && len(msgs) < inTx; number++ {
			msgs = append(msgs, message.NewMessage(tally.ID(number), []byte(payloads.Of(number))))
		}
		err := inTransaction(ctx, s.outbox.DB, func(tx *sql.Tx) error { return s.publish(tx, load.Destination, msgs...) })
		if err != nil {
			return nil, err
		}
	}
	return tally, s.outbox.Exec(ctx, `VACUUM ANALYZE `+s.adapter.MessagesTable(s.topic))
}

func inTransaction(ctx context.Context, db *sql.DB, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// forward runs Watermill's forwarder until ctx ends.
func (s *stock) forward(ctx context.Context, pub message.Publisher, ready func()) error {
	subscriber, err := s.subscriber()
	if err != nil {
		return err
	}
	relay, err := wmforwarder.NewForwarder(subscriber, pub, watermill.NopLogger{}, wmforwarder.Config{ForwarderTopic: s.topic})
	if err != nil {
		return err
	}
	go when(ctx, relay.Running(), ready)
	return relay.Run(ctx)
}

func (s *stock) drop(ctx context.Context) error {
	return s.outbox.Exec(ctx, `DROP TABLE `+s.adapter.MessagesTable(s.topic)+`, `+s.offsets.MessagesOffsetsTable(s.topic))
}

// stockDrain is drain for Watermill's outbox.
type stockDrain struct {
	outbox *rig.Outbox
	target *target
	load   rig.Load
}

func (d stockDrain) side(name string, t tuning) compare.Side {
	return compare.Side{Name: name, Round: func(ctx context.Context) (compare.Sample, error) { return d.round(ctx, t) }}
}

func (d stockDrain) round(ctx context.Context, t tuning) (sample compare.Sample, err error) {
	if d.load.Destination, err = d.target.destination(ctx); err != nil {
		return sample, err
	}
	s, err := newStock(d.outbox, t)
	if err != nil {
		return sample, err
	}
	tally, err := s.fill(ctx, d.load)
	if err != nil {
		return sample, err
	}
	pub, err := d.publisher(tally, t != tuning{})
	if err != nil {
		return sample, err
	}
	meter := compare.NewMeter(d.load.Rows)
	running := rig.Start(ctx, func(ctx context.Context) error {
		return s.forward(ctx, rig.MeteredSingly{Publisher: pub, Meter: meter}, meter.Start)
	})
	err = running.While(ctx, func(ctx context.Context) error { return meter.Wait(ctx, rig.Patience) })
	if err := errors.Join(err, running.Stop(), pub.Close()); err != nil {
		return sample, err
	}
	sample = meter.Sample()
	return sample, errors.Join(d.target.count(ctx, tally, &sample), s.drop(ctx))
}

func (d stockDrain) publisher(tally *compare.Tally, tuned bool) (message.Publisher, error) {
	if d.target.far == nil {
		return rig.Sink{Tally: tally}, nil
	}
	return d.target.far.Watermills(tuned)
}

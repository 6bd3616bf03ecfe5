package benchmarks_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/schema"
)

// The inner parts, for benchstat:
//
//	go test -run '^$' -bench 'Encode|Waves|Publish|Claim' -count 10 . > old.txt

// discard takes the place of a database, so that what is measured is this side of it.
type discard struct{}

func (discard) ExecContext(context.Context, string, ...any) (sql.Result, error) { return one{}, nil }

func (discard) Commit() error   { return nil }
func (discard) Rollback() error { return nil }

type one struct{}

func (one) LastInsertId() (int64, error) { return 0, nil }
func (one) RowsAffected() (int64, error) { return 1, nil }

func newMessage(number int, key string) *message.Message {
	msg := message.NewMessage(fmt.Sprintf("id-%d", number), []byte(strings.Repeat("x", 256)))
	msg.Metadata.Set("correlation_id", "0f8fad5b-d9cb-469f-a165-70867728950e")
	if key != "" {
		msg.Metadata.Set(outbox.PartitionKeyMetadata, key)
	}
	return msg
}

func BenchmarkEncodeMetadata(b *testing.B) {
	metadata := newMessage(1, "key").Metadata
	b.ReportAllocs()
	for b.Loop() {
		if _, rule := schema.EncodeMetadata(metadata); rule != "" {
			b.Fatal(rule)
		}
	}
}

// BenchmarkEncodeRow is PublishTx of a message without the database.
func BenchmarkEncodeRow(b *testing.B) {
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{}, nil)
	require.NoError(b, err)
	msg := newMessage(1, "key")
	b.ReportAllocs()
	for b.Loop() {
		if err := publisher.PublishTx(b.Context(), discard{}, "orders", msg); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWaves is the order inside a batch of 500, by the number of its keys.
func BenchmarkWaves(b *testing.B) {
	for _, keys := range []int{1, 50, 500} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			batch := make([]forwarder.Outgoing, 500)
			for i := range batch {
				batch[i] = forwarder.Outgoing{Destination: "orders", PartitionKey: fmt.Sprint(i % keys), Message: newMessage(i, "")}
			}
			send := func(_ context.Context, wave []forwarder.Outgoing) []error { return make([]error, len(wave)) }
			b.ReportAllocs()
			for b.Loop() {
				forwarder.Waves(b.Context(), batch, send)
			}
			b.ReportMetric(float64(b.N*len(batch))/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// BenchmarkPublish is PublishTx and the commit, on a real database.
func BenchmarkPublish(b *testing.B) {
	for _, inTx := range []int{1, 100} {
		b.Run(fmt.Sprintf("in_tx=%d", inTx), func(b *testing.B) {
			o := newOutbox(b)
			publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: o.Schema}, nil)
			require.NoError(b, err)
			msgs := make([]*message.Message, inTx)
			for i := range msgs {
				msgs[i] = newMessage(i, "")
			}
			b.ReportAllocs()
			for b.Loop() {
				tx, err := o.DB.BeginTx(b.Context(), nil)
				require.NoError(b, err)
				require.NoError(b, publisher.PublishTx(b.Context(), tx, "orders", msgs...))
				require.NoError(b, tx.Commit())
			}
			b.ReportMetric(float64(b.N*inTx)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// BenchmarkClaim is the claim, the decoding and the settling of rows, each operation one
// row, to a sink on a real database.
func BenchmarkClaim(b *testing.B) {
	for _, ordering := range []forwarder.Ordering{forwarder.None, forwarder.PerKey} {
		for _, batch := range []int{100, 500, 2000} {
			b.Run(fmt.Sprintf("ordering=%s/batch=%d", ordering, batch), func(b *testing.B) {
				o := newOutbox(b)
				tally, err := o.Fill(b.Context(), rig.Load{Rows: b.N, Destination: "orders", PayloadBytes: 256})
				require.NoError(b, err)
				require.NoError(b, o.Settle(b.Context()))
				metered := rig.Metered{Publisher: rig.Sink{Tally: tally}, Meter: compare.NewMeter(b.N)}
				f, err := forwarder.New(o.DB, metered,
					forwarder.Config{Schema: o.Schema, Ordering: ordering, Workers: 1, BatchSize: batch}, nil)
				require.NoError(b, err)
				b.ReportAllocs()
				b.ResetTimer()
				metered.Meter.Start()
				running := rig.Start(b.Context(), f.Run)
				require.NoError(b, running.While(b.Context(), func(ctx context.Context) error {
					return metered.Meter.Wait(ctx, rig.Patience)
				}))
				b.StopTimer()
				require.NoError(b, running.Stop())
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			})
		}
	}
}

func newOutbox(b *testing.B) *rig.Outbox {
	b.Helper()
	o, err := rig.FromEnvironment().NewOutbox(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, o.Close(context.WithoutCancel(b.Context()))) })
	return o
}

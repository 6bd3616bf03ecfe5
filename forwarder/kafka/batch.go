package kafka

import (
	"context"
	"errors"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/forwarder"
)

// batch is a batch whose messages are checked: each is either a record or rejected.
type batch struct {
	client   *kgo.Client
	records  map[forwarder.Outgoing]*kgo.Record
	rejected map[forwarder.Outgoing]error

	maxMessageBytes int
}

// send sends one wave, in which no two messages belong to one unit.
func (b batch) send(ctx context.Context, wave []forwarder.Outgoing) []error {
	results := b.produce(ctx, wave)
	if len(wave) == 1 {
		return results
	}
	// A broker refuses records by the batch that the client library made of them:
	// sent alone, each gets an answer of its own.
	for i, err := range results {
		if errors.Is(err, forwarder.ErrRefused) && b.rejected[wave[i]] == nil {
			results[i] = b.produce(ctx, wave[i:i+1])[0]
		}
	}
	return results
}

// produce waits for the answer to each message: they come in any order. The records get
// no end of their own: the client library fails all records that it sends together,
// those of other callers too, when the context of one ends. Where answers do not come,
// closing the client ends the wait.
func (b batch) produce(ctx context.Context, wave []forwarder.Outgoing) []error {
	ctx = context.WithoutCancel(ctx)
	results := make([]error, len(wave))
	var answers sync.WaitGroup
	for i, msg := range wave {
		if err := b.rejected[msg]; err != nil {
			results[i] = err
			continue
		}
		answers.Add(1)
		b.client.Produce(ctx, b.records[msg], func(_ *kgo.Record, err error) {
			results[i] = classify(err, b.maxMessageBytes)
			answers.Done()
		})
	}
	answers.Wait()
	return results
}

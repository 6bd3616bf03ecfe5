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

	newClient func() (*kgo.Client, error)
	// solo sends what is sent alone; nil: nothing was yet.
	solo *kgo.Client
}

// send sends one wave, in which no two messages belong to one unit. A broker refuses
// records by the batch that the client library made of them, for the fault of one or
// because it is too large as a whole: in halves, and halves of these, what is not to
// blame gets through, and what is gets an answer of its own. In the end it
// is sent by a client of its own: the library sends it together with what others send just then,
// and their fault would be its own.
func (b *batch) send(ctx context.Context, wave []forwarder.Outgoing) []error {
	results := b.produce(ctx, b.client, wave)
	refused := b.refusedByBroker(wave, results)
	if len(wave) == 1 && len(refused) == 1 {
		return b.sendAlone(ctx, wave)
	}
	middle := (len(refused) + 1) / 2
	for _, half := range [][]int{refused[:middle], refused[middle:]} {
		b.sendAgain(ctx, wave, half, results)
	}
	return results
}

// sendAlone is for a single message. The end of ctx closes the client, which ends the wait.
func (b *batch) sendAlone(ctx context.Context, single []forwarder.Outgoing) []error {
	if b.solo == nil {
		solo, err := b.newClient()
		if err != nil { // the same options worked before
			return same(len(single), forwarder.Unavailable(err))
		}
		b.solo = solo
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		b.solo.Close()
		close(closed)
	})
	results := b.produce(ctx, b.solo, single)
	if !stop() {
		<-closed
		b.solo = nil
	}
	return results
}

func (b *batch) close() {
	if b.solo != nil {
		b.solo.Close()
	}
}

// sendAgain sends some messages of a wave again, and replaces their results.
func (b *batch) sendAgain(ctx context.Context, wave []forwarder.Outgoing, places []int, results []error) {
	if len(places) == 0 {
		return
	}
	if err := ctx.Err(); err != nil {
		for _, place := range places {
			results[place] = forwarder.Unavailable(err) // nobody knows whose fault it was
		}
		return
	}
	part := make([]forwarder.Outgoing, len(places))
	for i, place := range places {
		part[i] = wave[place]
	}
	for i, err := range b.send(ctx, part) {
		results[places[i]] = err
	}
}

func (b *batch) refusedByBroker(wave []forwarder.Outgoing, results []error) (places []int) {
	for place, err := range results {
		if errors.Is(err, forwarder.ErrRefused) && b.rejected[wave[place]] == nil {
			places = append(places, place)
		}
	}
	return places
}

// produce waits for the answer to each message: they come in any order. The records get
// no end of their own: the client library fails all records that it sends together,
// those of other callers too, when the context of one ends. Where answers do not come,
// closing the client ends the wait.
func (b *batch) produce(ctx context.Context, client *kgo.Client, wave []forwarder.Outgoing) []error {
	ctx = context.WithoutCancel(ctx)
	results := make([]error, len(wave))
	var answers sync.WaitGroup
	for i, msg := range wave {
		if err := b.rejected[msg]; err != nil {
			results[i] = err
			continue
		}
		answers.Add(1)
		client.Produce(ctx, b.records[msg], func(_ *kgo.Record, err error) {
			results[i] = classify(err, b.maxMessageBytes)
			answers.Done()
		})
	}
	answers.Wait()
	return results
}

package kafka

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"

	"github.com/watermill-outbox/outbox/forwarder"
)

// batch is a batch whose messages are checked: each is either a record or rejected.
type batch struct {
	client   *kgo.Client
	records  map[forwarder.Outgoing]*kgo.Record
	rejected map[forwarder.Outgoing]error

	maxMessageBytes int
	// room is what sending takes of the publisher.
	room *semaphore.Weighted
}

const (
	// wholeRoom is what is taken where nothing else may be sent meanwhile.
	wholeRoom  = math.MaxInt32
	sharedRoom = 1
)

// send sends one wave, in which no two messages belong to one unit. A broker refuses
// records by the batch that the client library made of them, for the fault of one or
// because it is too large as a whole: in halves, and halves of these, what is not to
// blame gets through, and what is gets an answer of its own. In the end it
// is sent while nothing else is: the client library sends it together with what others send just
// then, and their fault would be its own.
func (b batch) send(ctx context.Context, wave []forwarder.Outgoing) []error {
	results := b.produce(ctx, wave, sharedRoom)
	refused := b.refusedByBroker(wave, results)
	if len(wave) == 1 && len(refused) == 1 {
		return b.produce(ctx, wave, wholeRoom)
	}
	middle := (len(refused) + 1) / 2
	for _, half := range [][]int{refused[:middle], refused[middle:]} {
		b.sendAgain(ctx, wave, half, results)
	}
	return results
}

// sendAgain sends some messages of a wave again, and replaces their results.
func (b batch) sendAgain(ctx context.Context, wave []forwarder.Outgoing, places []int, results []error) {
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

func (b batch) refusedByBroker(wave []forwarder.Outgoing, results []error) (places []int) {
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
func (b batch) produce(ctx context.Context, wave []forwarder.Outgoing, room int64) []error {
	if err := b.room.Acquire(ctx, room); err != nil {
		return same(len(wave), forwarder.Unavailable(err))
	}
	defer b.room.Release(room)
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

package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder"
)

// answerGrace is how much longer than its context a wave waits for confirmations that
// are on their way.
const answerGrace = 500 * time.Millisecond

// batch is a batch whose messages are checked: each is either a publishing or rejected.
type batch struct {
	conn        *connection
	publishings map[*message.Message]amqp091.Publishing
	rejected    map[*message.Message]error
}

func newBatch(cfg Config, conn *connection, msgs []forwarder.Outgoing) batch {
	b := batch{
		conn:        conn,
		publishings: make(map[*message.Message]amqp091.Publishing, len(msgs)),
		rejected:    map[*message.Message]error{},
	}
	for _, msg := range msgs {
		if err := checkRoute(cfg, msg.Destination); err != nil {
			b.rejected[msg.Message] = forwarder.DestinationUnavailable(err)
			continue
		}
		publishing, err := conn.publishing(msg)
		if err != nil {
			b.rejected[msg.Message] = forwarder.Refused(err)
			continue
		}
		b.publishings[msg.Message] = publishing
	}
	return b
}

var errRouteTooLong = errors.New("a name is too long for AMQP")

func checkRoute(cfg Config, destination string) error {
	exchange, key := cfg.AMQP.Exchange.GenerateName(destination), cfg.AMQP.Publish.GenerateRoutingKey(destination)
	if len(exchange) > maxShortStringBytes || len(key) > maxShortStringBytes {
		return fmt.Errorf("%w: exchange %q, routing key %q", errRouteTooLong, exchange, key)
	}
	return nil
}

// send sends one wave, in which no two messages belong to one unit: the destinations
// side by side, each on a channel of its own.
func (b batch) send(ctx context.Context, wave []forwarder.Outgoing) []error {
	results := make([]error, len(wave))
	places := map[string][]int{}
	for i, msg := range wave {
		if err := b.rejected[msg.Message]; err != nil {
			results[i] = err
			continue
		}
		places[msg.Destination] = append(places[msg.Destination], i)
	}
	var destinations sync.WaitGroup
	for destination, indexes := range places {
		destinations.Go(func() {
			for len(indexes) > 0 {
				chunk := indexes[:min(len(indexes), maxUnconfirmed)]
				b.sendTo(ctx, destination, wave, chunk, results)
				indexes = indexes[len(chunk):]
			}
		})
	}
	destinations.Wait()
	return results
}

// sendTo sends the messages at the given places of the wave and writes their results.
func (b batch) sendTo(ctx context.Context, destination string, wave []forwarder.Outgoing, places []int, results []error) {
	publishings := make([]amqp091.Publishing, len(places))
	for n, i := range places {
		publishings[n] = b.publishings[wave[i].Message]
	}
	answers := b.publish(ctx, destination, publishings)
	for n, i := range places {
		results[i] = answers[n]
		if !isRefusal(answers[n]) {
			continue
		}
		// The broker does not say which message it means: sent alone, each gets an answer of
		// its own.
		if len(places) > 1 {
			results[i] = b.publish(ctx, destination, publishings[n:n+1])[0]
		}
		if isRefusal(results[i]) && !errors.Is(results[i], errPreparing) {
			results[i] = forwarder.Refused(results[i])
		}
	}
}

// errPreparing marks what went wrong before any message was sent: no message is to
// blame for it.
var errPreparing = errors.New("prepare the destination")

func (b batch) publish(ctx context.Context, destination string, publishings []amqp091.Publishing) []error {
	if err := ctx.Err(); err != nil {
		return same(len(publishings), forwarder.Unavailable(err))
	}
	ch, err := b.acquire(ctx, destination)
	if err != nil {
		return same(len(publishings), classify(fmt.Errorf("%w: %w", errPreparing, err)))
	}
	w := newWave(ch, publishings)
	results := w.run(ctx, b.conn.whenBlocked())
	switch {
	case w.inOrder:
		b.conn.release(ch)
	case errors.Is(w.cause, errUnanswered):
		// Nothing on this connection is known any more, and even closing the channel would
		// wait.
		b.conn.drop()
	default:
		b.conn.discard(ch)
	}
	return results
}

// acquire bounds the opening of a channel: a broker that does not answer, or blocks the
// connection, would hold it. A channel that opens too late is closed.
func (b batch) acquire(ctx context.Context, destination string) (*channel, error) {
	type result struct {
		ch  *channel
		err error
	}
	opened, givenUp := make(chan result), make(chan struct{})
	go func() {
		ch, err := b.conn.acquire(destination)
		select {
		case opened <- result{ch, err}:
		case <-givenUp:
			if err == nil {
				b.conn.discard(ch)
			}
		}
	}()
	select {
	case o := <-opened:
		return o.ch, o.err
	case <-b.conn.whenBlocked():
		close(givenUp)
		return nil, errBlocked
	case <-ctx.Done():
		close(givenUp)
		b.conn.drop()
		return nil, fmt.Errorf("open channel: %w", ctx.Err())
	}
}

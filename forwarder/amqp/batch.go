package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder"
)

// answerGrace is how much longer than its context a wave waits for confirmations that
// are on their way.
const answerGrace = 500 * time.Millisecond

// batch is a batch whose messages are checked: each is either a publishing or rejected.
type batch struct {
	conn        *connection
	publishings map[forwarder.Outgoing]amqp091.Publishing
	rejected    map[forwarder.Outgoing]error
}

func newBatch(cfg Config, conn *connection, msgs []forwarder.Outgoing) batch {
	b := batch{
		conn:        conn,
		publishings: make(map[forwarder.Outgoing]amqp091.Publishing, len(msgs)),
		rejected:    map[forwarder.Outgoing]error{},
	}
	routes := map[string]error{}
	for _, msg := range msgs {
		err, checked := routes[msg.Destination]
		if !checked {
			err = checkRoute(cfg, msg.Destination)
			routes[msg.Destination] = err
		}
		if err != nil {
			b.rejected[msg] = forwarder.DestinationUnavailable(err)
			continue
		}
		publishing, err := conn.publishing(msg)
		if err != nil {
			b.rejected[msg] = forwarder.Refused(err)
			continue
		}
		b.publishings[msg] = publishing
	}
	return b
}

var errRouteTooLong = errors.New("a name is too long for AMQP")

// checkRoute looks at the names that the configuration makes of a destination. A panic
// there is the fault of that destination.
func checkRoute(cfg Config, destination string) (err error) {
	defer recoverInto(&err)
	names := []string{cfg.AMQP.Exchange.GenerateName(destination), cfg.AMQP.Publish.GenerateRoutingKey(destination)}
	if cfg.DeclareQueues {
		queue := cfg.AMQP.Queue.GenerateName(destination)
		names = append(names, queue, cfg.AMQP.QueueBind.GenerateRoutingKey(queue))
	}
	for _, name := range names {
		if len(name) > maxShortStringBytes {
			return fmt.Errorf("%w: %q has %d bytes, at most %d are allowed", errRouteTooLong, name, len(name), maxShortStringBytes)
		}
	}
	return nil
}

var errPanic = errors.New("panic in the configuration's code")

func recoverInto(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: %v", errPanic, r)
	}
}

// send sends one wave, in which no two messages belong to one unit: the destinations
// side by side, each on a channel of its own.
func (b batch) send(ctx context.Context, wave []forwarder.Outgoing) []error {
	results := make([]error, len(wave))
	places := map[string][]int{}
	for i, msg := range wave {
		if err := b.rejected[msg]; err != nil {
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
		publishings[n] = b.publishings[wave[i]]
	}
	answers := b.publish(ctx, destination, publishings)
	for n, i := range places {
		results[i] = answers[n]
		// The broker does not say which message it means: sent alone, each gets an answer of
		// its own.
		if refusal(results[i]) != nil && len(places) > 1 {
			results[i] = b.publish(ctx, destination, publishings[n:n+1])[0]
		}
		if reason := refusal(results[i]); reason != nil {
			results[i] = forwarder.Refused(fmt.Errorf("channel closed: %w", reason))
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
		b.dropIfSilent(err)
		return same(len(publishings), classify(fmt.Errorf("%w: %w", errPreparing, err)))
	}
	w := newWave(ch, publishings)
	results := w.run(ctx, b.conn.whenBlocked())
	if w.inOrder {
		b.conn.release(ch)
	} else {
		b.conn.discard(ch)
	}
	b.dropIfSilent(w.cause)
	return results
}

// dropIfSilent ends the connection where the broker did not answer in time. A caller
// that was only cancelled does not end it for the others.
func (b batch) dropIfSilent(err error) {
	if errors.Is(err, errUnanswered) && errors.Is(err, context.DeadlineExceeded) {
		b.conn.drop()
	}
}

// acquire bounds the opening of a channel: a broker that does not answer, or blocks the
// connection, would hold it. A channel that opens too late is closed.
func (b batch) acquire(ctx context.Context, destination string) (*channel, error) {
	ctx, cancel := withGrace(ctx)
	defer cancel()
	if ch := b.conn.takeIdle(destination); ch != nil {
		return ch, nil
	}
	if err := b.conn.takeSlot(ctx); err != nil {
		return nil, err
	}
	type result struct {
		ch  *channel
		err error
	}
	opened := make(chan result, 1)
	go func() {
		ch, err := b.open(destination)
		opened <- result{ch, err}
	}()
	select {
	case o := <-opened:
		return o.ch, o.err
	case <-b.conn.whenBlocked():
	case <-ctx.Done():
	}
	go func() {
		if o := <-opened; o.err == nil {
			b.conn.discard(o.ch)
		}
	}()
	if b.conn.isBlocked() {
		return nil, errBlocked
	}
	return nil, fmt.Errorf("open channel: %w", context.Cause(ctx))
}

// open gives the slot back where no channel comes of it.
func (b batch) open(destination string) (ch *channel, err error) {
	defer func() {
		if err != nil {
			<-b.conn.slots
		}
	}()
	defer recoverInto(&err)
	return openChannel(b.conn, destination)
}

// withGrace returns a context that ends a little later than ctx, with errUnanswered.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	graced, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(answerGrace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(fmt.Errorf("%w: %w", errUnanswered, context.Cause(ctx)))
		case <-graced.Done():
		}
	})
	return graced, func() {
		stop()
		cancel(nil)
	}
}

package amqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder"
)

// answerGrace is how much longer than its context a wave waits for confirmations that
// are on their way.
const answerGrace = 500 * time.Millisecond

// batch is a batch whose messages are checked: each is either addressed or rejected.
type batch struct {
	conn      *connection
	addressed map[forwarder.Outgoing]addressed
	rejected  map[forwarder.Outgoing]error
}

// addressed is a message in the form of the client library, with its route.
type addressed struct {
	route

	publishing amqp091.Publishing
}

func newBatch(conn *connection, msgs []forwarder.Outgoing) batch {
	b := batch{
		conn:      conn,
		addressed: make(map[forwarder.Outgoing]addressed, len(msgs)),
		rejected:  map[forwarder.Outgoing]error{},
	}
	routes, failures := map[string]route{}, map[string]error{}
	for _, msg := range msgs {
		destination := msg.Destination
		if _, known := routes[destination]; !known {
			routes[destination], failures[destination] = conn.config.routeOf(destination)
		}
		if err := failures[destination]; err != nil {
			b.rejected[msg] = forwarder.DestinationUnavailable(err)
			continue
		}
		a, err := conn.address(msg, routes[destination])
		if err != nil {
			b.rejected[msg] = err
			continue
		}
		b.addressed[msg] = a
	}
	return b
}

func (c *connection) address(msg forwarder.Outgoing, r route) (addressed, error) {
	r, err := r.of(msg.Message, c.config)
	if err != nil {
		return addressed{}, forwarder.Refused(err)
	}
	publishing, err := c.publishing(msg)
	return addressed{r, publishing}, err
}

var errPanic = errors.New("panic in the configuration's code")

func recoverInto(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: %v", errPanic, r)
	}
}

// send sends one wave, in which no two messages belong to one unit: the outlets side by
// side, each on a channel of its own.
func (b batch) send(ctx context.Context, wave []forwarder.Outgoing) []error {
	results := make([]error, len(wave))
	places := map[outlet][]int{}
	for i, msg := range wave {
		if err := b.rejected[msg]; err != nil {
			results[i] = err
			continue
		}
		to := b.addressed[msg].outlet
		places[to] = append(places[to], i)
	}
	var outlets sync.WaitGroup
	for to, indexes := range places {
		outlets.Go(func() {
			for len(indexes) > 0 {
				chunk := indexes[:min(len(indexes), maxUnconfirmed)]
				b.sendTo(ctx, to, wave, chunk, results)
				indexes = indexes[len(chunk):]
			}
		})
	}
	outlets.Wait()
	return results
}

// sendTo sends the messages at the given places of the wave and writes their results.
func (b batch) sendTo(ctx context.Context, to outlet, wave []forwarder.Outgoing, places []int, results []error) {
	msgs := make([]addressed, len(places))
	for n, i := range places {
		msgs[n] = b.addressed[wave[i]]
	}
	answers := b.publish(ctx, to, msgs)
	for n, i := range places {
		results[i] = answers[n]
		// The broker does not say which message it means: sent alone, each gets an answer of
		// its own.
		if len(places) > 1 && b.mayMeanAnother(results[i]) {
			results[i] = b.publish(ctx, to, msgs[n:n+1])[0]
		}
		switch reason := b.refusal(results[i]); {
		case reason == nil:
		case reason.Code == amqp091.NotFound: // the exchange that the message names
			results[i] = forwarder.RouteUnavailable(fmt.Errorf("channel closed: %w", reason))
		default:
			results[i] = forwarder.Refused(fmt.Errorf("channel closed: %w", reason))
		}
	}
}

// mayMeanAnother says that the broker closed the channel over one message of several. A
// routing key may be forbidden as well, where each message has its own.
func (b batch) mayMeanAnother(err error) bool {
	if b.conn.config.RoutingKeyMetadata != "" {
		return closedOver(err, amqp091.PreconditionFailed, amqp091.AccessRefused) != nil
	}
	return closedOver(err, amqp091.PreconditionFailed) != nil
}

// refusal returns the reason for which the broker closed a channel over a message, such
// as one that is too large, or names an exchange that is missing; nil where no message is
// to blame.
func (b batch) refusal(err error) *amqp091.Error {
	if b.conn.config.ExchangeMetadata != "" {
		return closedOver(err, amqp091.PreconditionFailed, amqp091.NotFound)
	}
	return closedOver(err, amqp091.PreconditionFailed)
}

// errPreparing marks what went wrong before any message was sent: no message is to
// blame for it.
var errPreparing = errors.New("prepare the destination")

func (b batch) publish(ctx context.Context, to outlet, msgs []addressed) []error {
	if err := ctx.Err(); err != nil {
		return same(len(msgs), forwarder.Unavailable(err))
	}
	ch, err := b.acquire(ctx, to)
	if err != nil {
		stalled := b.isStalled(ctx, err) && !errors.Is(err, errNoSlot)
		err = fmt.Errorf("%w: %w", errPreparing, err)
		if stalled {
			return same(len(msgs), forwarder.DestinationUnavailable(err))
		}
		return same(len(msgs), classify(err))
	}
	w := newWave(ch, msgs)
	results := w.run(ctx, b.conn.whenBlocked())
	if w.inOrder {
		b.conn.release(ch)
	} else {
		b.conn.discard(ch)
	}
	if b.isStalled(ctx, w.cause) && !slices.ContainsFunc(results, isAnswered) {
		return same(len(msgs), forwarder.DestinationUnavailable(w.cause))
	}
	return results
}

// isAnswered is true for one message at least where a queue is slow, but not away.
func isAnswered(result error) bool { return !errors.Is(result, forwarder.ErrUnavailable) }

// isStalled says that what was asked of a destination was not answered in time, while the
// broker answers: a queue may have lost the nodes that it needs. Where the broker does not
// answer either, it ends the connection. A caller that was only cancelled does not end it
// for the others.
func (b batch) isStalled(ctx context.Context, err error) bool {
	if !errors.Is(err, errUnanswered) || !errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	if b.conn.answers(context.WithoutCancel(ctx)) {
		return true
	}
	b.conn.drop()
	return false
}

// acquire bounds the opening of a channel: a broker that does not answer, or blocks the
// connection, would hold it. A channel that opens too late is closed.
func (b batch) acquire(ctx context.Context, to outlet) (*channel, error) {
	ctx, cancel := withGrace(ctx)
	defer cancel()
	if ch := b.conn.takeIdle(to); ch != nil {
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
		ch, err := b.open(to)
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
func (b batch) open(to outlet) (ch *channel, err error) {
	defer func() {
		if err != nil {
			<-b.conn.slots
		}
	}()
	defer recoverInto(&err)
	return openChannel(b.conn, to)
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

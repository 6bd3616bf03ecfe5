package amqp

import (
	"context"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder"
)

// wave is what goes out on one channel before its confirmations are waited for.
type wave struct {
	ch            *channel
	msgs          []addressed
	confirmations []*amqp091.DeferredConfirmation // nil: not sent
	sendErr       error
	// cause is why the wave was given up before all answers were there. Where the broker
	// blocks the connection, the messages stay with it: it reads them when the alarm is
	// over, whether or not we are still there, and a new connection would only add them
	// once more.
	cause error
	// inOrder says that the channel can serve again: nothing is left unanswered on it, and
	// the topology behind it is there.
	inOrder bool
}

func newWave(ch *channel, msgs []addressed) *wave {
	return &wave{ch: ch, msgs: msgs}
}

// sent is what the sender says of a message.
type sent struct {
	confirmation *amqp091.DeferredConfirmation
	err          error
}

// run sends the messages and waits for their answers, until ctx ends (and a little
// longer) or the connection is blocked.
func (w *wave) run(ctx context.Context, blocked <-chan struct{}) []error {
	graced, cancel := withGrace(ctx)
	defer cancel()
	w.cause = w.await(graced, blocked)
	return w.results()
}

// await returns nil once every message that was sent has its answer.
func (w *wave) await(ctx context.Context, blocked <-chan struct{}) error {
	reports := make(chan sent, len(w.msgs))
	go w.ch.sendAll(w.msgs, reports)
	for range w.msgs {
		select {
		case report := <-reports:
			if report.err != nil {
				w.sendErr = report.err
			}
			w.confirmations = append(w.confirmations, report.confirmation)
		case <-blocked:
			w.ch.abandoned.Store(true)
			return errBlocked
		case <-ctx.Done():
			w.ch.abandoned.Store(true)
			return context.Cause(ctx)
		}
	}
	for _, confirmation := range w.confirmations {
		if confirmation == nil {
			continue
		}
		select {
		case <-confirmation.Done():
		case <-blocked:
			return errBlocked
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// sendAll is a goroutine of its own, since a broker that does not read can hold it. It
// ends with the connection at the latest.
func (ch *channel) sendAll(msgs []addressed, reports chan<- sent) {
	var failed error
	for _, msg := range msgs {
		if failed != nil || ch.abandoned.Load() {
			reports <- sent{err: failed}
			continue
		}
		const mandatory, immediate = true, false
		confirmation, err := ch.amqp.PublishWithDeferredConfirm(ch.exchange, msg.routingKey, mandatory, immediate, msg.publishing)
		reports <- sent{confirmation, err}
		failed = err
	}
}

// answer is what is known of a message.
type answer int

const (
	unanswered answer = iota
	acked
	nacked
)

// results sorts the answers. A returned message is confirmed by RabbitMQ as well, after
// it was returned: it counts as returned. The broker sends both in this order, so the
// answers are read first: of each message that is confirmed by then, a return is here
// too. In the other order, a return and its confirmation could slip in between.
func (w *wave) results() []error {
	answers := w.answers()
	returned := w.returned()
	closed := w.ch.closeReason()
	if closed == nil {
		closed = w.sendErr
	}
	w.inOrder = w.cause == nil && closed == nil && len(returned) == 0
	results := make([]error, len(w.msgs))
	for i, msg := range w.msgs {
		reply, isReturned := returned[returnKey{msg.publishing.MessageId, msg.routingKey}]
		switch {
		case isReturned:
			results[i] = w.unroutable(reply)
		case answers[i] == acked:
		case closed != nil:
			results[i] = classify(fmt.Errorf("channel closed: %w", closed))
		case answers[i] == nacked:
			results[i] = forwarder.DestinationUnavailable(errRejected)
		case w.cause != nil:
			results[i] = forwarder.Unavailable(w.cause)
		default:
			results[i] = forwarder.Unavailable(errUnanswered)
		}
	}
	return results
}

func (w *wave) answers() []answer {
	answers := make([]answer, len(w.msgs))
	for i, confirmation := range w.confirmations {
		if confirmation == nil {
			continue
		}
		select {
		case <-confirmation.Done():
			answers[i] = nacked
			if confirmation.Acked() {
				answers[i] = acked
			}
		default:
		}
	}
	return answers
}

// unroutable has the message wait alone only where it chose its own way.
func (w *wave) unroutable(reply amqp091.Return) error {
	err := fmt.Errorf("%w: %d %s (exchange %q, routing key %q)",
		errUnroutable, reply.ReplyCode, reply.ReplyText, reply.Exchange, reply.RoutingKey)
	if w.ch.config.routesByMessage() {
		return forwarder.RouteUnavailable(err)
	}
	return forwarder.DestinationUnavailable(err)
}

type returnKey struct{ messageID, routingKey string }

// returned collects the returned messages. Where two messages of a wave share an id and
// a routing key, both count as returned.
func (w *wave) returned() map[returnKey]amqp091.Return {
	returned := map[returnKey]amqp091.Return{}
	for {
		select {
		case r, ok := <-w.ch.returns:
			if !ok {
				return returned
			}
			returned[returnKey{r.MessageId, r.RoutingKey}] = r
		default:
			return returned
		}
	}
}

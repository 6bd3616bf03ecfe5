package amqp

import (
	"context"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-outbox/outbox/forwarder"
)

// wave is what goes out on one channel before its confirmations are waited for.
type wave struct {
	ch            *channel
	publishings   []amqp091.Publishing
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

func newWave(ch *channel, publishings []amqp091.Publishing) *wave {
	return &wave{ch: ch, publishings: publishings}
}

// sent is what the sender says of a message.
type sent struct {
	confirmation *amqp091.DeferredConfirmation
	err          error
}

// run sends the messages and waits for their answers, until ctx ends (and a little
// longer) or the connection is blocked.
func (w *wave) run(ctx context.Context, blocked <-chan struct{}) []error {
	stop := make(chan error, 1)
	finished := make(chan struct{})
	defer close(finished)
	go watchStop(ctx, blocked, finished, stop)

	w.cause = w.await(stop)
	return w.results()
}

// watchStop says why the wave is not waited for any longer.
func watchStop(ctx context.Context, blocked, finished <-chan struct{}, stop chan<- error) {
	select {
	case <-finished:
		return
	case <-blocked:
		stop <- errBlocked
		return
	case <-ctx.Done():
	}
	grace := time.NewTimer(answerGrace)
	defer grace.Stop()
	select {
	case <-finished:
	case <-blocked:
		stop <- errBlocked
	case <-grace.C:
		stop <- fmt.Errorf("%w: %w", errUnanswered, ctx.Err())
	}
}

// await returns nil once every message that was sent has its answer.
func (w *wave) await(stop <-chan error) error {
	reports := make(chan sent, len(w.publishings))
	go w.ch.sendAll(w.publishings, reports)
	for range w.publishings {
		select {
		case report := <-reports:
			if report.err != nil {
				w.sendErr = report.err
			}
			w.confirmations = append(w.confirmations, report.confirmation)
		case cause := <-stop:
			w.ch.abandoned.Store(true)
			return cause
		}
	}
	for _, confirmation := range w.confirmations {
		if confirmation == nil {
			continue
		}
		select {
		case <-confirmation.Done():
		case cause := <-stop:
			return cause
		}
	}
	return nil
}

// sendAll is a goroutine of its own, since a broker that does not read can hold it. It
// ends with the connection at the latest.
func (ch *channel) sendAll(publishings []amqp091.Publishing, reports chan<- sent) {
	var failed error
	for _, publishing := range publishings {
		if failed != nil || ch.abandoned.Load() {
			reports <- sent{err: failed}
			continue
		}
		const mandatory, immediate = true, false
		confirmation, err := ch.amqp.PublishWithDeferredConfirm(ch.exchange, ch.routingKey, mandatory, immediate, publishing)
		reports <- sent{confirmation, err}
		failed = err
	}
}

// results sorts the answers. A returned message is confirmed by RabbitMQ as well, after
// it was returned: it counts as returned. The broker sends both in this order, so that
// all returns are here when the confirmations are.
func (w *wave) results() []error {
	returned := w.returned()
	closed := w.ch.closeReason()
	if closed == nil {
		closed = w.sendErr
	}
	w.inOrder = w.cause == nil && closed == nil && len(returned) == 0
	results := make([]error, len(w.publishings))
	for i, publishing := range w.publishings {
		var confirmation *amqp091.DeferredConfirmation
		if i < len(w.confirmations) {
			confirmation = w.confirmations[i]
		}
		reply, isReturned := returned[publishing.MessageId]
		switch {
		case isReturned:
			results[i] = forwarder.DestinationUnavailable(fmt.Errorf("%w: %d %s", errUnroutable, reply.ReplyCode, reply.ReplyText))
		case confirmation != nil && confirmation.Acked():
		case closed != nil:
			results[i] = classify(fmt.Errorf("channel closed: %w", closed))
		case confirmation != nil && isDone(confirmation):
			results[i] = forwarder.DestinationUnavailable(errRejected)
		case w.cause != nil:
			results[i] = forwarder.Unavailable(w.cause)
		default:
			results[i] = forwarder.Unavailable(errUnanswered)
		}
	}
	return results
}

// returned collects the returned messages by their id. Where two messages of a wave
// share an id, both count as returned.
func (w *wave) returned() map[string]amqp091.Return {
	returned := map[string]amqp091.Return{}
	for {
		select {
		case r, ok := <-w.ch.returns:
			if !ok {
				return returned
			}
			returned[r.MessageId] = r
		default:
			return returned
		}
	}
}

func isDone(confirmation *amqp091.DeferredConfirmation) bool {
	select {
	case <-confirmation.Done():
		return true
	default:
		return false
	}
}

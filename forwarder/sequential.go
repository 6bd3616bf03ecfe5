package forwarder

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

var (
	errStillPublishing = errors.New("an earlier call of Publish has not returned yet")
	errNotSent         = errors.New("not sent, messages before it failed")
)

// maxFailuresInARow is how many messages in a row may fail without saying why before
// the rest of the batch is not tried: one may be that message's own fault, two look
// like the broker's.
const maxFailuresInARow = 2

// sequential makes a BatchPublisher of a plain message.Publisher. One worker uses it
// at a time.
type sequential struct {
	publisher message.Publisher
	// pending ends when a call of Publish that outlived its bound has returned. Until
	// then no other is made, so that a publisher that hangs costs one goroutine.
	pending <-chan struct{}
}

func (s *sequential) PublishBatch(ctx context.Context, msgs []Outgoing) []error {
	results := make([]error, len(msgs))
	failed := map[Unit]bool{}
	failuresInARow := 0
	for i, msg := range msgs {
		switch {
		case failed[msg.Unit()]:
			results[i] = ErrKeyHeld
			continue
		case failuresInARow >= maxFailuresInARow:
			results[i] = Unavailable(errNotSent)
			continue
		}
		err := s.publish(ctx, msg)
		results[i] = err
		switch {
		case err == nil:
			failuresInARow = 0
			continue
		case errors.Is(err, ErrUnavailable):
			failuresInARow = maxFailuresInARow
		case !classified(err):
			failuresInARow++
		}
		failed[msg.Unit()] = true
	}
	return results
}

// publish bounds a call that takes no context. A message whose call is given up may
// still arrive: then it arrives twice, since it is sent again before any later
// message of its unit.
func (s *sequential) publish(ctx context.Context, msg Outgoing) error {
	if s.pending != nil {
		select {
		case <-s.pending:
			s.pending = nil
		case <-ctx.Done():
			return Unavailable(fmt.Errorf("%w: %w", errStillPublishing, ctx.Err()))
		}
	}
	msg.Message.SetContext(ctx)
	done, returned := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(returned)
		done <- recovered(func() error { return s.publisher.Publish(msg.Destination, msg.Message) })
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		s.pending = returned
		return Unavailable(fmt.Errorf("publish: %w", ctx.Err()))
	}
}

var errPanic = errors.New("forwarder: the publisher panicked")

// recovered turns a panic of a publisher into an error: a single row must not end the
// process.
func recovered(publish func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return publish()
}

package forwarder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ThreeDotsLabs/watermill/message"
)

var (
	errStillPublishing = errors.New("an earlier call of Publish has not returned yet")
	errNotSent         = errors.New("not sent, messages before it failed")
)

const (
	// maxFailuresInARow is how many messages in a row may fail without saying why before
	// the batch comes under suspicion: one may be that message's own fault, more look
	// like the broker's.
	maxFailuresInARow = 2
	// maxProbes is how many further messages, taken at random, must fail before the rest
	// of a batch under suspicion is not tried.
	maxProbes = 3
)

// sequential makes a BatchPublisher of a plain message.Publisher. One worker uses it
// at a time.
type sequential struct {
	publisher message.Publisher
	// pending ends when a call of Publish that outlived its bound has returned. Until
	// then no other is made, so that a publisher that hangs costs one goroutine.
	pending <-chan struct{}
}

func (s *sequential) PublishBatch(ctx context.Context, msgs []Outgoing) []error {
	suspicion := 0
	return Waves(ctx, msgs, func(ctx context.Context, wave []Outgoing) []error {
		return s.publishWave(ctx, wave, &suspicion)
	})
}

// publishWave sends the messages in the order given until too many fail, and then at
// random: where some messages fail of themselves, others behind them get their turn.
func (s *sequential) publishWave(ctx context.Context, wave []Outgoing, suspicion *int) []error {
	results := make([]error, len(wave))
	waiting := make([]int, len(wave))
	for i := range wave {
		waiting[i] = i
	}
	for len(waiting) > 0 {
		next := 0
		switch {
		case *suspicion >= maxFailuresInARow+maxProbes:
			for _, i := range waiting {
				results[i] = Unavailable(errNotSent)
			}
			return results
		case *suspicion >= maxFailuresInARow:
			next = rand.IntN(len(waiting))
		}
		i := waiting[next]
		waiting = append(waiting[:next], waiting[next+1:]...)
		results[i] = s.publish(ctx, wave[i])
		*suspicion = suspect(*suspicion, results[i])
	}
	return results
}

func suspect(suspicion int, err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrUnavailable):
		return maxFailuresInARow + maxProbes
	case classified(err):
		return suspicion
	default:
		return suspicion + 1
	}
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

// recovered turns a panic of a publisher into the refusal of what it was to publish: a
// single row must not end the process.
func recovered(publish func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = Refused(fmt.Errorf("%w: %v", errPanic, r))
		}
	}()
	return publish()
}

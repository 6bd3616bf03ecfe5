package chaos_test

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// subscriptions is what the subscribers of both brokers have in common. It is for one
// goroutine.
type subscriptions struct {
	cancels []context.CancelFunc
	open    sync.WaitGroup
}

// add has receive fill the channel that it returns, until receive ends by itself or
// because its context does.
func (s *subscriptions) add(
	ctx context.Context, receive func(ctx context.Context, messages chan<- *message.Message),
) <-chan *message.Message {
	ctx, cancel := context.WithCancel(ctx)
	s.cancels = append(s.cancels, cancel)
	messages := make(chan *message.Message)
	s.open.Go(func() {
		defer close(messages)
		defer cancel()
		receive(ctx, messages)
	})
	return messages
}

// Close returns when nothing is in hand any more.
func (s *subscriptions) Close() error {
	for _, cancel := range s.cancels {
		cancel()
	}
	s.open.Wait()
	return nil
}

// handOver returns what the handler said of the message.
func handOver(ctx context.Context, msg *message.Message, messages chan<- *message.Message) (acked bool, err error) {
	msg.SetContext(ctx)
	select {
	case messages <- msg:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	select {
	case <-msg.Acked():
		return true, nil
	case <-msg.Nacked():
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

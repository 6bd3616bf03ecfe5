package sqlsuite_test

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// closingSubscriber may be closed by several goroutines at once, as a router does that is not
// waited for, and has closed its subscriptions when Close returns, which the suite takes for
// granted. watermill-sql 3.1 races in the former, and closes the subscriptions a moment later.
type closingSubscriber struct {
	message.Subscriber

	closing sync.Mutex

	mu            sync.Mutex
	subscriptions []<-chan *message.Message
}

func (s *closingSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	received, err := s.Subscriber.Subscribe(ctx, topic)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.subscriptions = append(s.subscriptions, received)
	}
	return received, err //nolint:wrapcheck // the suite's
}

func (s *closingSubscriber) Close() error {
	s.closing.Lock()
	defer s.closing.Unlock()
	err := s.Subscriber.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, received := range s.subscriptions {
		for range received { // nothing is sent any more
		}
	}
	return err //nolint:wrapcheck // the suite's
}

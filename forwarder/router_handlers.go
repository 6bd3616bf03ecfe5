package forwarder

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// swapTime is how long a router may be without a running handler: a service that swaps
// handlers may stop the old one before it runs the new one.
const swapTime = 2 * time.Second

// otherHandlers are a router's handlers that are not forwarders, as their subscriptions
// show them. Router and Handler do not tell: what they know they keep under a lock that
// Router.Close holds while it waits.
type otherHandlers struct {
	first sync.Once
	// began is closed when there has been a subscription.
	began chan struct{}

	mu            sync.Mutex
	subscriptions map[*subscription]struct{} // those that have not finished
}

// subscription is one handler's.
type subscription struct {
	// leaving ends when the handler is told to stop, or has stopped by itself.
	leaving <-chan struct{}
	leave   func()
	// stopped is closed when the subscription has ended, and finished when each of its
	// messages is acked or nacked besides.
	stopped, finished chan struct{}
}

func (s *subscription) isLeaving() <-chan struct{}   { return s.leaving }
func (s *subscription) hasStopped() <-chan struct{}  { return s.stopped }
func (s *subscription) hasFinished() <-chan struct{} { return s.finished }

func newOtherHandlers() *otherHandlers {
	return &otherHandlers{began: make(chan struct{}), subscriptions: map[*subscription]struct{}{}}
}

// decorate is a message.SubscriberDecorator.
func (o *otherHandlers) decorate(sub message.Subscriber) (message.Subscriber, error) {
	closing, leave := context.WithCancel(context.Background())
	return &observedSubscriber{
		Subscriber: sub,
		others:     o,
		leave:      leave,
		whenClosed: func(do func()) { context.AfterFunc(closing, do) },
	}, nil
}

func (o *otherHandlers) add(ctx context.Context) *subscription {
	leaving, leave := context.WithCancel(ctx)
	s := &subscription{
		leaving:  leaving.Done(),
		leave:    leave,
		stopped:  make(chan struct{}),
		finished: make(chan struct{}),
	}
	o.mu.Lock()
	o.subscriptions[s] = struct{}{}
	o.mu.Unlock()
	o.first.Do(func() { close(o.began) })
	return s
}

func (o *otherHandlers) remove(s *subscription) {
	o.mu.Lock()
	delete(o.subscriptions, s)
	o.mu.Unlock()
	close(s.finished)
}

// await waits until all subscriptions have come so far. It returns false if orUntil
// comes first; nil never comes.
func (o *otherHandlers) await(soFar func(*subscription) <-chan struct{}, orUntil <-chan struct{}) bool {
	for {
		next := o.find(soFar)
		if next == nil {
			return true
		}
		select {
		case <-next:
		case <-orUntil:
			return false
		}
	}
}

// find returns what a subscription that has not come so far closes when it has.
func (o *otherHandlers) find(soFar func(*subscription) <-chan struct{}) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	for s := range o.subscriptions {
		select {
		case <-soFar(s):
		default:
			return soFar(s)
		}
	}
	return nil
}

// haveLeft waits until there have been handlers and all have stopped by themselves. It
// returns false if ctx ends first. While a router starts, running is open, and handlers
// may be missing yet.
func (o *otherHandlers) haveLeft(ctx context.Context, running <-chan struct{}) bool {
	for _, event := range []<-chan struct{}{running, o.began} {
		select {
		case <-event:
		case <-ctx.Done():
			return false
		}
	}
	for o.await((*subscription).hasStopped, ctx.Done()) {
		sleep(ctx, swapTime, nil)
		if ctx.Err() != nil {
			return false
		}
		if o.find((*subscription).hasStopped) == nil {
			return true
		}
	}
	return false
}

// observedSubscriber is a handler's subscriber, or a forwarder.
type observedSubscriber struct {
	message.Subscriber

	others     *otherHandlers
	leave      func()
	whenClosed func(do func())
}

// Subscribe passes messages on as they come.
func (o *observedSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if strings.HasPrefix(topic, routerTopic) {
		return o.Subscriber.Subscribe(ctx, topic)
	}
	s := o.others.add(ctx)
	o.whenClosed(s.leave)
	messages, err := o.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		s.leave()
		close(s.stopped)
		o.others.remove(s)
		return nil, err
	}
	observed := make(chan *message.Message)
	go func() {
		var given unsettled
		for msg := range messages {
			given.add(msg)
			observed <- msg
		}
		close(observed)
		s.leave()
		close(s.stopped)
		given.wait()
		o.others.remove(s)
	}()
	return observed, nil
}

// Close tells the handler to stop.
func (o *observedSubscriber) Close() error {
	o.leave()
	return o.Subscriber.Close()
}

// unsettled are messages that may not be acked or nacked yet. It keeps no more than
// twice as many as there are, and not the messages.
type unsettled struct {
	receipts []receipt
	sweepAt  int
}

type receipt struct{ acked, nacked <-chan struct{} }

func (u *unsettled) add(msg *message.Message) {
	if len(u.receipts) >= u.sweepAt {
		u.receipts = slices.DeleteFunc(u.receipts, receipt.settled)
		u.sweepAt = 2*len(u.receipts) + 1
	}
	u.receipts = append(u.receipts, receipt{acked: msg.Acked(), nacked: msg.Nacked()})
}

func (r receipt) settled() bool {
	select {
	case <-r.acked:
	case <-r.nacked:
	default:
		return false
	}
	return true
}

// wait returns when all are. A handler that never returns holds it up, as it does its own
// goroutine.
func (u *unsettled) wait() {
	for _, r := range u.receipts {
		select {
		case <-r.acked:
		case <-r.nacked:
		}
	}
}

package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// errRouterRuns is a mistake that Watermill would not tell of: handlers that run already
// would not be waited for.
var errRouterRuns = errors.New("forwarder: the router runs already, add the plugin before")

// RouterPlugin lets the forwarder live and end with an existing router, in place of Run:
//
//	router.AddPlugin(f.RouterPlugin)
//
// The forwarder starts with the router's handlers, and ends after them: when the router
// is closed, when its context ends, or when all handlers have stopped by themselves for
// 2 seconds, which closes the router as it would without a forwarder. A handler has ended
// when its subscription has, and each message that it was given is acked or nacked. Then
// the forwarder goes on until it finds no more rows, so that what the handlers wrote as
// they finished is sent: for 5 seconds at most, and not while the broker or the database
// is away. At last it finishes the batches in flight, within the bound that Run names.
// What is not sent by then stays in the outbox.
//
// Router.Close and Router.Run return once all of that is done, or the router's
// CloseTimeout (by default 30 s) is over: it bounds the end of the context too. From then
// on the forwarder waits for no handler and claims nothing, but finishes its batches, on
// its own. So give the router a CloseTimeout beyond the time that handlers need,
// PublishTimeout, and 10 seconds, and close the database and the forwarder's publisher
// only after Run. The router closes the publisher of each handler that ends: the
// forwarder needs one that no handler has.
//
// The plugin fails, and Router.Run with it, where Run would: with schema.ErrNotMigrated
// and its like where nothing could ever be forwarded, and with ErrAlreadyRun on a second
// call, or beside Run. A database that does not answer within DatabaseTimeout is waited
// for while the router runs; if it turns out to be unfit, the error is logged and the
// router is closed.
//
// Any number of forwarders fit on one router, and none waits for another. Each is seen as
// a handler without messages, with a name of its own that begins with outbox-forwarder.
// Handlers that are added while the router runs are waited for too. One that acks a
// message before it has handled it (Watermill's InstantAck) is not waited for.
func (f *Forwarder) RouterPlugin(r *message.Router) error {
	if r.IsRunning() {
		return errRouterRuns
	}
	if !f.started.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	if err := f.refuseUnfitDatabase(); err != nil {
		return err
	}
	others := newOtherHandlers()
	r.AddSubscriberDecorators(others.decorate)
	r.AddConsumerHandler(
		"outbox-forwarder-"+watermill.NewShortUUID(),
		routerTopic+f.config.Schema.Outbox(),
		&routerSubscriber{forwarder: f, router: r, others: others, ended: make(chan *message.Message)},
		func(*message.Message) error { return nil }, // there are no messages
	)
	return nil
}

// routerTopic begins the topics of forwarders, by which they leave each other out.
const routerTopic = "outbox-forwarder:"

// refuseUnfitDatabase finds out what can be found out at once.
func (f *Forwarder) refuseUnfitDatabase() error {
	ctx, cancel := context.WithTimeout(context.Background(), f.config.DatabaseTimeout)
	defer cancel()
	inspected := make(chan error, 1)
	go func() {
		_, err := f.inspectDatabase(ctx)
		inspected <- err
	}()
	select {
	case err := <-inspected:
		if isUnfit(err) {
			return fmt.Errorf("forwarder: %w", err)
		}
	case <-ctx.Done(): // lib/pq may wait on
	}
	return nil
}

// routerSubscriber is a subscription without messages that lasts as long as the
// forwarder: the router waits for it as for its other handlers.
type routerSubscriber struct {
	forwarder *Forwarder
	router    *message.Router
	others    *otherHandlers

	start sync.Once
	ended chan *message.Message
}

// Subscribe starts the forwarder. A decorator may call it several times.
func (s *routerSubscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.start.Do(func() { go s.run(ctx) })
	return s.ended, nil
}

// Close does nothing: when the router closes, it also ends the context.
func (s *routerSubscriber) Close() error { return nil }

func (s *routerSubscriber) run(ctx context.Context) {
	defer close(s.ended)
	forwarding, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var forLast context.Context // set before forwarding ends
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.forward(forwarding, func(w *worker) { w.lastPass(forLast) })
	}()

	s.awaitRoutersEnd(ctx)
	closed := s.closeRouter()
	if !s.others.await((*subscription).hasFinished, closed.Done()) {
		s.forwarder.logger.Info("Forwarder waits no more for the router's handlers", nil)
	}
	forLast, cancel := context.WithTimeout(closed, lastPassTime)
	defer cancel()
	stop()
	<-stopped
}

func (s *routerSubscriber) forward(ctx context.Context, afterwards func(*worker)) {
	if err := s.forwarder.runBounded(ctx, afterwards, lastPassTime); err != nil {
		s.forwarder.logger.Error("Forwarder has failed, its router is closed", err, nil)
		s.closeRouter()
	}
}

// awaitRoutersEnd waits until the other handlers are leaving, or have left. It goes by
// their own contexts: a handler that was added later may have another than the router's.
func (s *routerSubscriber) awaitRoutersEnd(ctx context.Context) {
	if s.others.haveLeft(ctx, s.router.Running()) {
		s.forwarder.logger.Error("All handlers but forwarders have stopped, closing the router", errHandlersStopped, nil)
		return
	}
	s.others.await((*subscription).isLeaving, nil)
}

var errHandlersStopped = errors.New("forwarder: no handler is left on the router")

// closeRouter returns a context that ends when the router is closed, or waits no more
// for its handlers, whoever closes it. Where its context has ended, nobody else would
// bound the wait. Until then Watermill would close the handlers' subscribers with it,
// and at the end of the context it does not.
func (s *routerSubscriber) closeRouter() context.Context {
	closed, done := context.WithCancel(context.Background())
	go func() {
		defer done()
		if err := s.router.Close(); err != nil {
			s.forwarder.logger.Error("Router was closed before all of its handlers had ended", err, nil)
		}
	}()
	return closed
}

package main

import (
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/inbox"
	"github.com/watermill-outbox/outbox/middleware"
)

// service is a Watermill service that consumes from the broker through its inbox and
// produces through its outbox.
type service struct {
	router     *message.Router
	subscriber message.Subscriber
	outbox     *outbox.Publisher
	inbox      *middleware.Inbox
}

// newService makes a service that consumes what is published to the destination.
func (d *demo) newService(name, destination string) (service, error) {
	logger := newLogger()
	subscriber, err := d.servers.NewSubscriber(name, destination, logger)
	if err != nil {
		return service{}, err
	}
	tables := d.servers.Tables()
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: tables}, logger)
	if err != nil {
		return service{}, err
	}
	store, err := inbox.NewStore(inbox.Config{Schema: tables})
	if err != nil {
		return service{}, err
	}
	once, err := middleware.NewInbox(middleware.InboxConfig{
		DB:          d.db,
		Store:       store,
		Consumer:    name,
		Outbox:      publisher,
		OnDuplicate: d.countDuplicate,
	}, logger)
	if err != nil {
		return service{}, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logger)
	if err != nil {
		return service{}, err
	}
	retry := wm.Retry{
		MaxRetries:          3,
		InitialInterval:     100 * time.Millisecond,
		ResetContextOnRetry: true,
		ShouldRetry:         func(p wm.RetryParams) bool { return !middleware.IsPermanent(p.Err) },
		Logger:              logger,
	}
	router.AddMiddleware(d.countHandled, retry.Middleware, wm.Recoverer)
	return service{router: router, subscriber: subscriber, outbox: publisher, inbox: once}, nil
}

// newLogger shows only what a user should see.
func newLogger() watermill.LoggerAdapter {
	handler := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})
	return watermill.NewSlogLogger(slog.New(handler))
}

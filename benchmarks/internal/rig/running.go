package rig

import (
	"context"
	"errors"
)

// Running is something that was started and is to be ended.
type Running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// Start runs until Stop, or until ctx ends.
func Start(ctx context.Context, run func(ctx context.Context) error) *Running {
	ctx, cancel := context.WithCancel(ctx)
	r := &Running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = run(ctx)
	}()
	return r
}

var errEnded = errors.New("it ended by itself")

// While does something in a context that ends if what runs does.
func (r *Running) While(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- do(ctx) }()
	select {
	case err := <-finished:
		return err
	case <-r.done:
		cancel()
		return errors.Join(errEnded, r.err, <-finished)
	}
}

// Stop ends it and returns its error.
func (r *Running) Stop() error {
	r.cancel()
	<-r.done
	if errors.Is(r.err, context.Canceled) {
		return nil
	}
	return r.err
}

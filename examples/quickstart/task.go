package main

import (
	"context"
	"errors"
)

var errEndedEarly = errors.New("a part of the demo ended early")

// tasks are the parts of the demo that run in the background. The zero value is ready.
type tasks struct{ running []*task }

type task struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of a stop as asked; to be read after done
}

// start runs a part until stop. A part that ends before it is asked to aborts the run.
func (t *tasks) start(ctx context.Context, abort context.CancelCauseFunc, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	started := &task{cancel: cancel, done: make(chan struct{})}
	t.running = append(t.running, started)
	go func() {
		defer close(started.done)
		err := run(ctx)
		if ctx.Err() == nil {
			abort(errors.Join(errEndedEarly, err))
			return
		}
		started.err = err
	}()
}

// stop ends all parts at once and returns when they have ended, with their errors.
func (t *tasks) stop() error {
	errs := make([]error, 0, len(t.running))
	for _, task := range t.running {
		task.cancel()
	}
	for _, task := range t.running {
		<-task.done
		errs = append(errs, task.err)
	}
	t.running = nil
	return errors.Join(errs...)
}

package forwarder

import (
	"errors"
	"fmt"
	"time"
)

// errUnanswered says that a call into the database was given up.
var errUnanswered = errors.New("forwarder: the database does not answer")

// answered does not wait for do beyond a limit. Where packets vanish, lib/pq waits for the
// answer of a server, whatever the context of the call says, until the operating system gives
// the connection up: that may take a quarter of an hour. Until then the call keeps its
// goroutine and its connection. The database has long ended its transaction by itself.
func answered[T any](limit time.Duration, do func() (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		a.result, a.err = do()
		done <- a
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.result, a.err
	case <-timer.C:
		return result, fmt.Errorf("%w within %s", errUnanswered, limit)
	}
}

// turnLimit is how long a turn takes at most where the driver comes back in time: it waits for
// a connection, and then for the batch.
func (w *worker) turnLimit() time.Duration {
	return 2*w.batchBound(w.paces.stretch()) + w.config.DatabaseTimeout
}

// batchBound is what a batch may take, without waiting for a connection.
func (w *worker) batchBound(stretch int) time.Duration {
	return time.Duration(stretch)*w.config.PublishTimeout + 4*w.config.DatabaseTimeout
}

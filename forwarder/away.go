package forwarder

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"
)

// awayDestinations remembers which destinations the broker does not have at the
// moment, so that their rows are not claimed again and again. All workers share it.
type awayDestinations struct {
	newBackOff func() backoff.BackOff
	logger     watermill.LoggerAdapter

	mu   sync.Mutex
	away map[string]*absence
}

// forgetAfter is when a destination that no row names any more is forgotten.
const forgetAfter = 10 * time.Minute

type absence struct {
	backOff backoff.BackOff
	since   time.Time
	until   time.Time
}

// gone makes the destination wait. Many messages of one batch count once.
func (a *awayDestinations) gone(destination string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away == nil {
		a.away = map[string]*absence{}
	}
	known := a.away[destination]
	if known == nil {
		known = &absence{backOff: a.newBackOff(), since: time.Now()}
		a.away[destination] = known
	}
	if now := time.Now(); now.After(known.until) {
		wait := known.backOff.NextBackOff()
		known.until = now.Add(wait)
		a.logger.Error("Destination is unavailable, its messages wait", err, watermill.LogFields{
			"destination": destination,
			"retry_in":    wait,
		})
	}
}

// back ends the wait of a destination that took a message.
func (a *awayDestinations) back(destination string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.away[destination]; known != nil {
		delete(a.away, destination)
		a.logger.Info("Destination is back", watermill.LogFields{
			"destination": destination,
			"after":       time.Since(known.since).Round(time.Millisecond),
		})
	}
}

// destinations lists those that are to be left out of a claim now.
func (a *awayDestinations) destinations() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	waiting := []string{}
	for destination, absence := range a.away {
		switch {
		case now.Before(absence.until):
			waiting = append(waiting, destination)
		case now.Sub(absence.until) > forgetAfter:
			delete(a.away, destination)
		}
	}
	return waiting
}

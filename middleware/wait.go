package middleware

import (
	"context"
	"time"

	"github.com/watermill-outbox/outbox/inbox"
)

// lostHostMargin is how long after its deadline a transaction may still be idle: by then
// this side has ended it, if it is still there.
const lostHostMargin = 10 * time.Second

// idleBound is how long a transaction under ctx may be idle; zero is no bound. It is for a
// side that has gone without a word, with its host or its network: until TCP notices, which
// may take hours, the event would be busy for every other delivery.
//
// It is rounded up to a power of two of seconds, so that there are few different
// statements: pgx keeps each of them prepared.
func idleBound(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	idle := time.Second
	for least := time.Until(deadline) + lostHostMargin; idle < least; idle *= 2 {
		if idle > inbox.MaxLimit/2 {
			return 0
		}
	}
	return idle
}

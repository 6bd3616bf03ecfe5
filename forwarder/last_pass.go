package forwarder

import (
	"context"
	"time"
)

// lastPassTime bounds how long a forwarder goes on to claim after the last handler of
// its router has ended. A backlog may be long, and a broker slow.
const lastPassTime = 5 * time.Second

// lastPass forwards what was committed before it began, as far as it gets until ctx
// ends. All other workers have ended. It does not try a broker or a database that is
// away: whoever closes a router does not want to wait for them.
func (w *worker) lastPass(ctx context.Context) {
	w.claimer.workers = 1 // a share of the lanes could be one without rows
	for ctx.Err() == nil && !w.broker.lasts() && !w.database.lasts() {
		passUntil := w.passUntil
		out, err := w.forwardBatch(ctx, w.claim)
		switch {
		case err != nil && ctx.Err() != nil && out.claimed == 0:
			return
		case err != nil && w.passUntil.After(passUntil): // the next claim passes by what others have locked
		case err != nil:
			w.logger.Error(databaseTrouble(err)+", the forwarder stops all the same", err, nil)
			return
		case out.claimed == 0, out.obstacle != nil && out.confirmed == 0:
			return
		}
	}
}

// lasts says whether there is an outage now.
func (o *outage) lasts() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.since.IsZero()
}

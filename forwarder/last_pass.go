package forwarder

import (
	"context"
	"database/sql"
	"time"
)

// lastPassTime bounds how long a forwarder goes on to claim after the last handler of
// its router has ended. A backlog may be long, and a broker slow.
const lastPassTime = 5 * time.Second

const (
	// lanesTime is how long it waits for lanes that are taken. Those of a worker that gave
	// up its claim are free a moment later; those of other replicas need not be waited for.
	lanesTime = time.Second
	lanesPoll = 10 * time.Millisecond
)

// lastPass forwards what was committed before it began, as far as it gets until ctx
// ends. All other workers have ended. It does not try a broker or a database that is
// away: whoever closes a router does not want to wait for them.
func (w *worker) lastPass(ctx context.Context) {
	w.claimer.workers = 1 // a share of the lanes could be one without rows
	taken := false
	turn := func(ctx context.Context, tx *sql.Tx) (_ claim, err error) {
		taken, err = w.claimer.someLanesAreTaken(ctx, tx)
		if err != nil {
			return claim{}, err
		}
		return w.claim(ctx, tx)
	}
	lanesUntil := time.Now().Add(lanesTime)
	for ctx.Err() == nil && !w.isCutOff() {
		passUntil := w.passUntil
		out, err := w.forwardBatch(ctx, turn)
		switch {
		case err != nil && ctx.Err() != nil && out.claimed == 0:
			return
		case err != nil && w.passUntil.After(passUntil): // the next claim passes by what others have locked
		case err != nil:
			w.logger.Error(databaseTrouble(err)+", the forwarder stops all the same", err, nil)
			return
		case out.claimed == 0 && taken && time.Now().Before(lanesUntil):
			sleep(ctx, lanesPoll, nil)
		case out.claimed == 0, out.obstacle != nil && out.confirmed == 0:
			return
		}
	}
}

func (w *worker) isCutOff() bool { return w.broker.lasts() || w.database.lasts() }

// someLanesAreTaken takes those that are free.
func (c claimer) someLanesAreTaken(ctx context.Context, tx *sql.Tx) (bool, error) {
	in, err := c.occupy(ctx, tx, request{lane: anyLane})
	return len(in.lanes) < in.total, err
}

// lasts says whether there is an outage now.
func (o *outage) lasts() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.since.IsZero()
}

package forwarder

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// lookout is kept by one of the workers that have found nothing, for all of them. It asks
// the database whether there is something to claim, at first every few milliseconds, then
// less and less often; or it sleeps until a writer wakes it. Who finds something claims it,
// and leaves the lookout to the next.
type lookout struct {
	config  Config
	db      *sql.DB
	marks   *marks
	sleeper *sleeper // nil: nobody wakes it
	trouble *outage
	wake    <-chan struct{}
	query   string

	// turn is held by the worker that keeps it.
	turn chan struct{}
	// stirred gets something when a claim of others has found something.
	stirred chan struct{}
	// lookOnce says that it has just lain down: what was committed before, nobody wakes it for.
	lookOnce bool
	// awakeUntil is how long it does not try to sleep, since that failed.
	awakeUntil time.Time
	// naps is how many times it has slept since the last claim.
	naps int

	mu sync.Mutex
	// workedAt is when a claim found something, claimedAt when there was one at all.
	workedAt, claimedAt time.Time
	// inVain is how many claims have found nothing since.
	inVain int
	// flying has the highest seq of each batch in flight.
	flying map[*worker]int64
	// searchTook is how long the last search took: a slow one is not made all the time.
	searchTook time.Duration
}

const (
	// shortestLook is between two looks while there is something to do.
	shortestLook = 2 * time.Millisecond
	// lookShare is the part of the time without work that passes between two looks.
	lookShare = 100
	// searchShare keeps searches below a third of the time, however long one takes.
	searchShare = 2
	// sleepAfter is how long a forwarder looks by itself before it goes to sleep.
	sleepAfter = time.Second
	// napsToClaim is after how many naps a claim is made, whatever there is.
	napsToClaim = 10
	// longestInVain bounds how long what only others may claim delays the next look.
	longestInVain = 50 * time.Millisecond
)

func newLookout(cfg Config, db *sql.DB, marks *marks, wake <-chan struct{}) *lookout {
	return &lookout{
		config: cfg, db: db, marks: marks, wake: wake, query: lookQuery(cfg.Schema),
		turn: make(chan struct{}, 1), stirred: make(chan struct{}, 1),
		flying: map[*worker]int64{}, workedAt: time.Now(), claimedAt: time.Now(),
	}
}

// lookQuery finds the unit of a row in the flow behind $1, or of one that is due, to a
// destination that is not among $2. It is no promise that it can be claimed.
func lookQuery(s schema.Postgres) string {
	const elsewhere = `destination OPERATOR(pg_catalog.<>) ALL ($2::pg_catalog.text[])`
	return `SELECT coalesce(
			(SELECT unit_hash FROM ` + s.Outbox() + ` WHERE seq OPERATOR(pg_catalog.>) $1::pg_catalog.int8
				AND published_at IS NULL AND next_attempt_at IS NULL AND ` + elsewhere + `
				ORDER BY seq LIMIT 1),
			(SELECT unit_hash FROM ` + s.Outbox() + ` WHERE next_attempt_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()
				AND next_attempt_at OPERATOR(pg_catalog.<) 'infinity'::pg_catalog.timestamptz AND ` + elsewhere + `
				ORDER BY next_attempt_at LIMIT 1))`
}

// took says that a worker has a batch in hand: what it has, nobody need look for.
func (l *lookout) took(w *worker, rows []row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying[w] = rows[len(rows)-1].seq
}

// landed says that it has not any more.
func (l *lookout) landed(w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.flying, w)
}

// claimed says that there was a claim, and whether it found something.
func (l *lookout) claimed(something bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claimedAt = time.Now()
	if something {
		l.workedAt, l.inVain = l.claimedAt, 0
		select {
		case l.stirred <- struct{}{}:
		default:
		}
		return
	}
	l.inVain++
}

// await returns when it is time to claim, or when ctx has ended, and the lane to begin with.
func (l *lookout) await(ctx context.Context) (lane int) {
	lane = anyLane
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return lane
	}
	defer func() { <-l.turn }()
	for found := false; !found && ctx.Err() == nil; {
		if l.sleeps(ctx) {
			lane, found = l.sleep(ctx)
		} else {
			lane, found = l.look(ctx)
		}
	}
	return lane
}

// look waits, and says whether it is time to claim.
func (l *lookout) look(ctx context.Context) (lane int, found bool) {
	pause, due := l.pause(time.Now())
	select {
	case <-time.After(pause):
	case <-l.stirred:
		return anyLane, false // the pause is shorter now
	case <-l.wake:
		return l.search(ctx)
	case <-ctx.Done():
		return anyLane, true
	}
	if due {
		return anyLane, true
	}
	return l.search(ctx)
}

// pause is until the next look; due says that a claim is to follow, whatever there is.
func (l *lookout) pause(now time.Time) (pause time.Duration, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pause = max(now.Sub(l.workedAt)/lookShare, shortestLook, searchShare*l.searchTook)
	if l.inVain > 0 {
		pause = max(pause, min(pause<<min(l.inVain, 8), longestInVain))
	}
	pause = min(pause, l.config.PollInterval)
	left := max(nap, l.config.PollInterval) - now.Sub(l.claimedAt)
	return max(0, min(pause, left)), left <= pause
}

// search looks for a row. Where it cannot be known, a claim will tell what is wrong.
func (l *lookout) search(ctx context.Context) (lane int, found bool) {
	from, away := l.view()
	began := time.Now()
	hash, err := answered(2*l.config.DatabaseTimeout, func() (hash sql.Null[int64], err error) {
		ctx, cancel := context.WithTimeout(ctx, l.config.DatabaseTimeout)
		defer cancel()
		err = l.db.QueryRowContext(ctx, l.query, from, append(pq.StringArray{}, away...)).Scan(&hash)
		return hash, err //nolint:wrapcheck // nobody reads it
	})
	l.mu.Lock()
	l.searchTook = time.Since(began)
	l.mu.Unlock()
	if err != nil {
		return anyLane, true
	}
	return int(hash.V & (maxLanes - 1)), hash.Valid
}

// view is the seq to look behind, and what to leave out.
func (l *lookout) view() (from int64, away []string) {
	from, away = l.marks.lowest()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seq := range l.flying {
		from = max(from, seq)
	}
	return from, away
}

// sleeps says whether it sleeps now, and has it lie down or get up before as it should.
func (l *lookout) sleeps(ctx context.Context) bool {
	if l.sleeper == nil {
		return false
	}
	if !l.maySleep(time.Now()) {
		if l.sleeper.asleep { // somebody has found something meanwhile
			l.getUp(ctx, true)
		}
		return false
	}
	if l.sleeper.asleep {
		return true
	}
	lies, err := l.sleeper.lieDown(ctx)
	l.tell(ctx, err)
	if l.lookOnce = lies; lies {
		l.trouble.over()
	}
	return lies
}

// sleep sleeps until it is time to claim, or to think again.
func (l *lookout) sleep(ctx context.Context) (lane int, found bool) {
	if l.lookOnce {
		l.lookOnce = false
		if lane, found = l.search(ctx); found {
			l.getUp(ctx, true)
			return lane, true
		}
	}
	select {
	case <-l.sleeper.ears.heard:
		l.getUp(ctx, !l.sleeper.ears.hears.Load())
		return l.search(ctx)
	case <-time.After(max(nap, l.config.PollInterval)):
		return l.turnOver(ctx)
	case <-l.wake:
		return l.search(ctx)
	case <-ctx.Done():
		return anyLane, true
	}
}

// turnOver looks, though nobody has woken it, and goes on sleeping if there is nothing. From
// time to time it claims, which finds what a look does not.
func (l *lookout) turnOver(ctx context.Context) (lane int, found bool) {
	_, err := l.sleeper.stillSleeps(ctx)
	l.tell(ctx, err)
	if l.naps++; l.naps >= napsToClaim {
		l.naps = 0
		return anyLane, true
	}
	return l.search(ctx)
}

// getUp has it look by itself from now on.
func (l *lookout) getUp(ctx context.Context, tell bool) {
	l.tell(ctx, l.sleeper.getUp(ctx, tell))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.workedAt, l.inVain = time.Now(), 0
}

// tell tells of what keeps it from sleeping; for a while it does not try again.
func (l *lookout) tell(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	began := time.Now()
	l.awakeUntil = began.Add(nap)
	l.trouble.note("Forwarder cannot sleep, it looks for rows every PollInterval", err, nap, began)
}

func (l *lookout) maySleep(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.workedAt) >= sleepAfter && len(l.flying) == 0 && now.After(l.awakeUntil)
}

// lowest is the lowest mark, and what is left out.
func (m *marks) lowest() (mark int64, away []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, lane := range m.lanes {
		if i == 0 || lane < mark {
			mark = lane
		}
	}
	return mark, m.away
}

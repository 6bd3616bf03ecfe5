package forwarder

import (
	"context"
	"database/sql"
	"math"
	"slices"
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
	hot     *hotLanes
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
	// lookedAt is when it last looked in its sleep, looks how often since the last claim.
	lookedAt time.Time
	looks    int

	mu sync.Mutex
	// workedAt is when a claim found something, claimedAt when there was one at all.
	workedAt, claimedAt time.Time
	// inVain is how many claims have found nothing since.
	inVain int
	// hinted says that a row was seen for the next claim, misled that the last such claim found
	// nothing: others have the row, and it would be seen again and again.
	hinted, misled bool
	// flying are the batches in flight.
	flying map[*worker]flight
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
	// looksToClaim is after how many looks in its sleep a claim is made, whatever there is.
	looksToClaim = 10
	// longestInVain bounds how long what only others may claim delays the next look.
	longestInVain = 50 * time.Millisecond
)

func newLookout(cfg Config, db *sql.DB, marks *marks, wake <-chan struct{}) *lookout {
	return &lookout{
		config: cfg, db: db, marks: marks, hot: newHotLanes(), wake: wake, query: lookQuery(cfg.Schema),
		turn: make(chan struct{}, 1), stirred: make(chan struct{}, 1),
		flying: map[*worker]flight{}, workedAt: time.Now(), claimedAt: time.Now(),
	}
}

// flight is what a batch in flight keeps from others: its lanes, or where there is no order
// the rows up to its last.
type flight struct {
	lanes []int64
	last  int64
}

// lookQuery finds the unit of a row in the flow behind $1, or of one that is due, to a
// destination that is not among $2, in a lane that is not among $4, of $3 lanes. It is no
// promise that it can be claimed.
func lookQuery(s schema.Postgres) string {
	const elsewhere = `destination OPERATOR(pg_catalog.<>) ALL ($2::pg_catalog.text[])
		AND (unit_hash OPERATOR(pg_catalog.&) ($3::pg_catalog.int4 OPERATOR(pg_catalog.-) 1))
			OPERATOR(pg_catalog.<>) ALL ($4::pg_catalog.int4[])`
	return `SELECT coalesce(
			(SELECT unit_hash FROM ` + s.Outbox() + ` WHERE seq OPERATOR(pg_catalog.>) $1::pg_catalog.int8
				AND published_at IS NULL AND next_attempt_at IS NULL AND ` + elsewhere + `
				ORDER BY seq LIMIT 1),
			(SELECT unit_hash FROM ` + s.Outbox() + ` WHERE next_attempt_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()
				AND next_attempt_at OPERATOR(pg_catalog.<) 'infinity'::pg_catalog.timestamptz AND ` + elsewhere + `
				ORDER BY next_attempt_at LIMIT 1))`
}

// took says that a worker has a batch in hand: what it has, nobody need look for.
func (l *lookout) took(w *worker, taken claim) {
	f := flight{lanes: taken.lanes}
	if w.config.Ordering == None {
		f = flight{last: taken.rows[len(taken.rows)-1].seq}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying[w] = f
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
	l.hinted, l.misled = false, l.hinted && !something
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
	pause = max(now.Sub(l.workedAt)/lookShare, shortestLook)
	if l.inVain > 0 {
		pause = max(pause, min(pause<<min(l.inVain, 8), longestInVain))
	}
	pause = max(min(pause, l.config.PollInterval), searchShare*l.searchTook)
	left := max(nap, l.config.PollInterval) - now.Sub(l.claimedAt)
	return max(0, min(pause, left)), left <= pause
}

// search looks for a row. Where it cannot be known, a claim will tell what is wrong.
func (l *lookout) search(ctx context.Context) (lane int, found bool) {
	v := l.view()
	began := time.Now()
	hash, err := answered(2*l.config.DatabaseTimeout, func() (hash sql.Null[int64], err error) {
		ctx, cancel := context.WithTimeout(ctx, l.config.DatabaseTimeout)
		defer cancel()
		err = inReadOnlyTx(ctx, l.db, func(tx *sql.Tx) error {
			away := append(pq.StringArray{}, v.away...)
			return tx.QueryRowContext(ctx, l.query, v.from, away, v.total, v.held).Scan(&hash) //nolint:wrapcheck // nobody reads it
		})
		return hash, err
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.searchTook = time.Since(began)
	if err != nil {
		return anyLane, true
	}
	if !hash.Valid || l.misled { // what is in other lanes has its turn
		return anyLane, hash.Valid
	}
	l.hinted = true
	return int(hash.V & (maxLanes - 1)), true
}

// outlook is where to look: behind a seq, and not for what is away or in lanes that are held.
type outlook struct {
	from  int64
	away  []string
	total int
	held  pq.Int64Array
}

func (l *lookout) view() outlook {
	l.mu.Lock()
	held, last := pq.Int64Array{}, int64(0)
	for _, f := range l.flying {
		held, last = append(held, f.lanes...), max(last, f.last)
	}
	l.mu.Unlock()
	lanes, _ := l.hot.are() // their worker looks for itself
	held = append(held, lanes...)
	v := l.marks.outlook(held)
	v.from = max(v.from, last)
	return v
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
	select { // what was heard while it was awake; before it is asked whether it hears
	case <-l.sleeper.ears.heard:
	default:
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
		l.lookOnce, l.lookedAt = false, time.Now()
		if lane, found = l.search(ctx); found {
			l.getUp(ctx, true)
			return lane, true
		}
	}
	select {
	case <-l.sleeper.ears.heard:
		l.getUp(ctx, !l.sleeper.ears.hears.Load())
		return l.search(ctx)
	case <-time.After(nap):
		return l.turnOver(ctx)
	case <-l.wake:
		return l.search(ctx)
	case <-ctx.Done():
		return anyLane, true
	}
}

// turnOver sees to it that somebody would be woken. If that has not changed, it looks for rows
// as often as is wished, and claims now and then, which finds what a look does not.
func (l *lookout) turnOver(ctx context.Context) (lane int, found bool) {
	same, err := l.sleeper.stillSleeps(ctx)
	l.tell(ctx, err)
	if !same { // nobody may have been woken for what was committed meanwhile
		l.lookOnce = l.sleeper.asleep
		return l.search(ctx)
	}
	now := time.Now()
	if now.Sub(l.lookedAt) < l.config.PollInterval {
		return anyLane, false
	}
	l.lookedAt = now
	if l.looks++; l.looks >= looksToClaim {
		l.looks = 0
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

// outlook is what there is to look for beside the lanes that are held.
func (m *marks) outlook(held pq.Int64Array) outlook {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := outlook{away: m.away, total: max(1, len(m.lanes)), held: held, from: math.MaxInt64}
	for lane, mark := range m.lanes {
		if !slices.Contains(held, int64(lane)) {
			v.from = min(v.from, mark)
		}
	}
	if len(m.lanes) == 0 {
		v.from = 0
	}
	return v
}

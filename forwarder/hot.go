package forwarder

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lib/pq"
)

// hotLanes are those of units with many more rows than others. A unit's rows are sent one after
// another, and all that was claimed with them waits. So such lanes are left to a worker of their
// own, and the others are as fast as without them.
//
// It is a matter of speed alone, and known to this process only: whoever holds a lane may send
// what is in it.
type hotLanes struct {
	// lit gets something when there are some.
	lit chan struct{}

	mu    sync.Mutex
	units pq.Int64Array
	lanes pq.Int64Array
}

const (
	// hotRows is how many rows of a unit in a batch make it hot, where they are hotShare times
	// as many as a unit has there on average.
	hotRows  = 16
	hotShare = 4
	// hotPart is the part of the lanes that may be hot, an eighth: one worker is to cope with them.
	hotPart = 8
	// hotBatch is how many rows of hot lanes are taken at once: what comes meanwhile beside the
	// hot units waits as long.
	hotBatch = 64
	// hotPause is between two attempts to get hot lanes that others hold.
	hotPause = 10 * time.Millisecond
)

func newHotLanes() *hotLanes { return &hotLanes{lit: make(chan struct{}, 1)} }

// hotIn returns the units of a claim that are hot. One that stays hot need not have others beside
// it.
func hotIn(taken claim, stays bool) []int64 {
	if len(taken.rows) < hotRows || taken.total <= 1 {
		return nil
	}
	rows := map[int64]int{}
	for i := range taken.rows {
		rows[taken.rows[i].unitHash]++
	}
	var hot []int64
	for unit, n := range rows {
		if n >= hotRows && (stays || n*len(rows) >= hotShare*len(taken.rows)) {
			hot = append(hot, unit)
		}
	}
	return hot
}

// learn says which units of the lanes of a claim are hot.
func (h *hotLanes) learn(taken claim, hot []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(hot)+len(h.units) == 0 {
		return
	}
	laneOf := func(unit int64) int64 { return unit & int64(taken.total-1) }
	units := slices.DeleteFunc(slices.Clone(h.units), func(unit int64) bool { return slices.Contains(taken.lanes, laneOf(unit)) })
	units = append(units, hot...)
	h.units, h.lanes = units[:min(len(units), max(1, taken.total/hotPart))], nil
	for _, unit := range h.units {
		h.lanes = append(h.lanes, laneOf(unit))
	}
	if len(h.lanes) > 0 {
		select {
		case h.lit <- struct{}{}:
		default:
		}
	}
}

// cool says that there is nothing in them.
func (h *hotLanes) cool() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes, h.units = nil, nil
}

// are returns them, and their units. They are not changed, but replaced.
func (h *hotLanes) are() (lanes, units pq.Int64Array) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lanes, h.units
}

func (h *hotLanes) areThere() bool {
	lanes, _ := h.are()
	return len(lanes) > 0
}

// await says that there are some, or that ctx has ended before.
func (h *hotLanes) await(ctx context.Context) bool {
	for !h.areThere() && ctx.Err() == nil {
		select {
		case <-h.lit:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// mindHeat leaves hot lanes out. Who tends them takes a part of the hot units, and every other time
// what is beside them, for which it need not wait then.
func (w *worker) mindHeat(ask *request) {
	if w.hot == nil {
		return
	}
	var units pq.Int64Array
	ask.hot, units = w.hot.are()
	ask.onlyHot = w.tendsHot
	if !w.tendsHot || ask.rows == 1 {
		return
	}
	if w.besides = !w.besides; w.besides {
		ask.tried = units
		return
	}
	ask.rows = min(ask.rows, hotBatch)
}

// leaveNoneOut asks for the units that were left out as well.
func (w *worker) leaveNoneOut(ask *request) {
	ask.tried = nil
	if ask.onlyHot {
		ask.rows = min(ask.rows, hotBatch)
	}
}

func (w *worker) learnHeat(taken claim) {
	if w.hot != nil && !taken.partial {
		w.hot.learn(taken, hotIn(taken, w.tendsHot))
	}
}

// noteClaim says whether a claim has found something. Where nothing is in the hot lanes, they are as
// all others again.
func (w *worker) noteClaim(out outcome) {
	switch {
	case out.claimed > 0 || !w.tendsHot:
		w.lookout.claimed(out.claimed > 0)
	case !out.barred:
		w.hot.cool()
	}
}

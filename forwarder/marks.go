package forwarder

import (
	"sync"
	"time"
)

// marks remember, for each lane, up to which seq there is nothing to claim from the flow:
// those rows are settled, or wait, or their destinations are away. So a million rows that wait for a broker
// are not read again at each claim, nor are rows marked as published, nor the index
// entries of deleted ones while an old snapshot keeps them.
//
// Sequences and commits cross: a lower seq may become visible later. The marks pass no
// seq before the horizon has, below which nothing can appear any more. That is what
// keeps a unit's order: no row of it is claimed while an earlier one may still come.
//
// All workers share them. They are a memory of this process, the database knows nothing
// of them.
type marks struct {
	mu sync.Mutex
	// away are the destinations to leave out. It stands here because marks hold for what
	// is left out only.
	away []string
	// generation changes when marks are lowered: what a claim learned before does not
	// hold after.
	generation int

	lanes []int64

	horizon horizon
	// epoch changes when the horizon is forgotten.
	epoch int
	// history is that of the database that they speak of.
	history string
}

// view is what a claim may go by.
type view struct {
	// from is the seq above which there may be something to claim.
	from int64
	// safe is the seq up to which the claim sees all that there will ever be.
	safe       int64
	away       []string
	generation int
	// newest asks for the newest seq in the table: claims alone do not tell it while all
	// that is there is left out.
	newest bool
}

// finding is what a claim has seen in the lanes that it holds.
type finding struct {
	lanes []int64
	// first is the lowest seq that was found, whether or not it was taken: what is done about
	// it may fail. last is the highest that was seen; 0: none.
	first, last int64
	// full says that there may be more in its window.
	full bool
	// beyond is the lowest seq that it did not look at; 0: there is none.
	beyond int64
}

// view says where a claim in a territory starts.
func (m *marks) view(in territory) view {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recognize(in.history)
	if len(m.lanes) != in.total {
		m.lanes = make([]int64, in.total)
		m.generation++
	}
	v := view{
		safe:       m.horizon.safe,
		away:       m.away,
		generation: m.generation,
		newest:     len(m.away) > 0 && m.horizon.asks(time.Now()),
	}
	for i, lane := range in.lanes {
		if mark := m.lanes[lane]; i == 0 || mark < v.from {
			v.from = mark
		}
	}
	return v
}

// recognize forgets all that was known if the database is another one: after a failover, a
// restore or a TRUNCATE, seqs may begin anew. Connections that were idle meanwhile do not notice.
func (m *marks) recognize(history string) {
	if m.history != "" && m.history != history {
		m.lower()
		m.horizon = horizon{}
		m.epoch++
	}
	m.history = history
}

// learn moves the marks up to what a claim has found.
func (m *marks) learn(v view, f finding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.generation != m.generation {
		return
	}
	m.horizon.newest = max(m.horizon.newest, f.last)
	up := v.safe
	if f.beyond > 0 {
		up = min(up, f.beyond-1)
	}
	if f.first > 0 {
		up = min(up, f.first-1)
	}
	for _, lane := range f.lanes {
		m.lanes[lane] = max(m.lanes[lane], up)
	}
}

// leftOut are the destinations that claims leave out.
func (m *marks) leftOut() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

// leaveOut sets the destinations that claims leave out. Where one of them no longer is,
// its rows below the marks count again.
func (m *marks) leaveOut(away []string, fewer bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
	if fewer {
		m.lower()
	}
}

// giveBack has the next claims of a lane read its rows from seq on again.
func (m *marks) giveBack(lane, seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.generation++ // also where no mark has passed it: a claim may be about to
	if lane < int64(len(m.lanes)) {
		m.lanes[lane] = min(m.lanes[lane], seq-1)
	}
}

// isBelow says whether the mark of a lane has passed a seq.
func (m *marks) isBelow(lane, seq int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return lane < int64(len(m.lanes)) && m.lanes[lane] >= seq
}

// forget has them read everything again: the database may be another one by now, with a
// history of its own.
func (m *marks) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lower()
	m.horizon = horizon{}
	m.epoch++
}

func (m *marks) lower() {
	m.generation++
	clear(m.lanes)
}

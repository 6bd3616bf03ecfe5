package forwarder

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/lib/pq"
)

// horizonInterval is how often the horizon is looked at, while there is something to
// learn.
const horizonInterval = 100 * time.Millisecond

// horizon finds out up to which seq nothing can appear any more.
//
// Whoever draws a seq has locked the table before (an INSERT takes ROW EXCLUSIVE when
// it is planned) and keeps the lock until its rows are visible or gone. So when a seq
// has been seen, all lower ones belong to transactions that have ended or hold such a
// lock now; once those have ended too, nothing can appear below it. Other transactions,
// however long they take, do not matter.
type horizon struct {
	// newest is the highest seq that was seen.
	newest int64
	// safe is the horizon. It holds for statements that begin from now on.
	safe int64

	// candidate becomes safe when all its writers have ended.
	candidate int64
	writers   []string

	looking  bool
	lookedAt time.Time
	askedAt  time.Time
}

// asks says whether a claim is to look for the newest seq.
func (h *horizon) asks(now time.Time) bool {
	if now.Sub(h.askedAt) < horizonInterval {
		return false
	}
	h.askedAt = now
	return true
}

// looks says whether it is time to look who is writing.
func (h *horizon) looks(now time.Time) bool {
	if h.looking || h.newest <= h.safe || now.Sub(h.lookedAt) < horizonInterval {
		return false
	}
	h.looking, h.lookedAt = true, now
	return true
}

// saw learns from a look that began when newest had been seen.
func (h *horizon) saw(newest int64, writers []string) {
	if slices.ContainsFunc(h.writers, func(w string) bool { return slices.Contains(writers, w) }) {
		return
	}
	h.safe = max(h.safe, h.candidate)
	h.candidate, h.writers = newest, writers
}

// writersQuery lists the transactions that may have drawn a seq: $1 is the table.
const writersQuery = `SELECT array_agg(DISTINCT l.virtualtransaction)::text
	FROM pg_catalog.pg_locks AS l
	WHERE l.locktype = 'relation' AND l.relation = $1::text::regclass
		AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
		AND l.granted AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')`

// lookAhead moves the horizon, if it is time to.
func (m *marks) lookAhead(ctx context.Context, tx *sql.Tx, table, history string) error {
	m.mu.Lock()
	m.recognize(history)
	epoch, newest, looks := m.epoch, m.horizon.newest, m.horizon.looks(time.Now())
	m.mu.Unlock()
	if !looks {
		return nil
	}
	var writers pq.StringArray
	err := tx.QueryRowContext(ctx, writersQuery, table).Scan(&writers)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.epoch != epoch {
		return err //nolint:wrapcheck // claim wraps it
	}
	m.horizon.looking = false
	if err == nil {
		m.horizon.saw(newest, writers)
	}
	return err //nolint:wrapcheck // claim wraps it
}

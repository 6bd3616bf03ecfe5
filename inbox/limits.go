package inbox

import (
	"fmt"
	"math"
	"time"
)

// MaxLimit is the longest limit, some 24 days: the largest timeout that Postgres takes.
const MaxLimit = math.MaxInt32 * time.Millisecond

// Limits are what RecordWithin sets for a transaction. Its commit is made durable as well, even
// where synchronous_commit is off: an event whose key is recorded is usually acknowledged next.
type Limits struct {
	// Wait is how long the key is waited for while another open transaction holds it, or the
	// table while it is locked; then the error wraps ErrBusy. It is rounded up to
	// milliseconds. For what comes after, the transaction's lock_timeout is again what it
	// was. Zero: that one holds for the key too.
	Wait time.Duration
	// Idle is how long Postgres waits for the next statement of the transaction from then on,
	// if the session has no closer bound (idle_in_transaction_session_timeout): it frees the
	// key of a host that is lost. It is rounded up to milliseconds. Zero: no bound is set.
	Idle time.Duration
}

// Validate reports limits that are negative or longer than MaxLimit. The error wraps
// ErrInvalidLimits.
func (l Limits) Validate() error {
	for name, limit := range map[string]time.Duration{"Wait": l.Wait, "Idle": l.Idle} {
		if limit < 0 || limit > MaxLimit {
			return fmt.Errorf("%w: %s is %s, it must lie between 0 and %s", ErrInvalidLimits, name, limit, MaxLimit)
		}
	}
	return nil
}

// milliseconds rounds up: zero would be no limit.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

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
	// table while it is locked; then the error wraps ErrBusy. It is rounded up to milliseconds. For what comes after, the
	// transaction's lock_timeout is again what it was. Zero: that one holds for the key too.
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

// formerWait is the setting in which a transaction keeps what its lock_timeout was. Postgres takes
// any name with a dot from anyone, and forgets the value at the end of the transaction.
const formerWait = "watermill_outbox.former_lock_timeout"

// restoredWait puts lock_timeout back.
const restoredWait = `pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('` + formerWait + `'), true)`

// statement sets them. Its part is materialized so that the settings are read before they are set.
// It is not the one that records, which waits for its table's lock before it sets anything.
func (l Limits) statement() string {
	wait, idle := `NULL`, `NULL`
	if l.Wait > 0 {
		wait = fmt.Sprintf(`pg_catalog.set_config('lock_timeout', '%dms', true)`, milliseconds(l.Wait))
	}
	if l.Idle > 0 {
		idle = fmt.Sprintf(`CASE WHEN idle = '0'::pg_catalog.interval OR idle > '%[1]d milliseconds'::pg_catalog.interval
			THEN pg_catalog.set_config('idle_in_transaction_session_timeout', '%[1]dms', true) END`, milliseconds(l.Idle))
	}
	return `WITH before AS MATERIALIZED (
			SELECT pg_catalog.current_setting('lock_timeout') AS wait,
				pg_catalog.current_setting('idle_in_transaction_session_timeout')::pg_catalog.interval AS idle
		)
		SELECT pg_catalog.set_config('` + formerWait + `', wait, true), ` + wait + `,
			CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'
				THEN pg_catalog.set_config('synchronous_commit', 'on', true) END,
			` + idle + `
		FROM before`
}

// milliseconds rounds up: zero would be no limit.
func milliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1) / time.Millisecond
}

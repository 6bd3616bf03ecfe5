package middleware

import (
	"context"
	"fmt"
	"time"

	"github.com/watermill-outbox/outbox"
)

// formerLockTimeout is the setting in which a transaction keeps what its lock_timeout
// was. Postgres takes any name with a dot from anyone, and forgets the value at the end
// of the transaction. It spares a statement that returns rows, which outbox.Tx has not.
const formerLockTimeout = "watermill_outbox.former_lock_timeout"

// limitWaitStatement sets lock_timeout for the transaction and keeps what it was. The
// CTE is materialized so that it is read before it is set. In the same round trip it
// makes the commit durable, since the message is acked right after it; and, where idle is
// not zero, it bounds how long Postgres waits for this side's next statement, if the
// session has no closer bound.
func limitWaitStatement(limit, idle time.Duration) string {
	boundIdle := `NULL`
	if idle > 0 {
		boundIdle = fmt.Sprintf(`CASE WHEN idle = '0'::pg_catalog.interval OR idle > '%[1]d seconds'::pg_catalog.interval
			THEN pg_catalog.set_config('idle_in_transaction_session_timeout', '%[1]ds', true) END`, idle/time.Second)
	}
	// Rounded up: zero would be no limit.
	milliseconds := (limit + time.Millisecond - 1) / time.Millisecond
	return fmt.Sprintf(`WITH before AS MATERIALIZED (SELECT pg_catalog.current_setting('lock_timeout') AS value,
			pg_catalog.current_setting('idle_in_transaction_session_timeout')::pg_catalog.interval AS idle)
		SELECT pg_catalog.set_config('%s', value, true), pg_catalog.set_config('lock_timeout', '%dms', true),
			CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'
				THEN pg_catalog.set_config('synchronous_commit', 'on', true) END,
			%s
		FROM before`, formerLockTimeout, milliseconds, boundIdle)
}

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
		if idle > maxWaitTimeout/2 {
			return 0
		}
	}
	return idle
}

const restoreWaitStatement = `SELECT pg_catalog.set_config('lock_timeout',
	pg_catalog.current_setting('` + formerLockTimeout + `'), true)`

// boundWait bounds how long the next statement waits for another transaction, and, where
// ctx has a deadline, how long others wait for this one.
func (i *Inbox) boundWait(ctx context.Context, tx outbox.Tx) error {
	if _, err := tx.ExecContext(ctx, limitWaitStatement(i.config.WaitTimeout, idleBound(ctx))); err != nil {
		return fmt.Errorf("middleware: set timeouts: %w", err)
	}
	return nil
}

// restoreWait puts lock_timeout back as it was, for the handler.
func restoreWait(ctx context.Context, tx outbox.Tx) error {
	if _, err := tx.ExecContext(ctx, restoreWaitStatement); err != nil {
		return fmt.Errorf("middleware: restore lock_timeout: %w", err)
	}
	return nil
}

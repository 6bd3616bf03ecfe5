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
// makes the commit durable: the message is acked right after it.
func limitWaitStatement(limit time.Duration) string {
	// Rounded up: zero would be no limit.
	milliseconds := (limit + time.Millisecond - 1) / time.Millisecond
	return fmt.Sprintf(`WITH before AS MATERIALIZED (SELECT pg_catalog.current_setting('lock_timeout') AS value)
		SELECT pg_catalog.set_config('%s', value, true), pg_catalog.set_config('lock_timeout', '%dms', true),
			CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'
				THEN pg_catalog.set_config('synchronous_commit', 'on', true) END
		FROM before`, formerLockTimeout, milliseconds)
}

const restoreWaitStatement = `SELECT pg_catalog.set_config('lock_timeout',
	pg_catalog.current_setting('` + formerLockTimeout + `'), true)`

// boundWait bounds how long the next statement waits for another transaction.
func (i *Inbox) boundWait(ctx context.Context, tx outbox.Tx) error {
	if _, err := tx.ExecContext(ctx, i.limitWait); err != nil {
		return fmt.Errorf("middleware: set lock_timeout: %w", err)
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

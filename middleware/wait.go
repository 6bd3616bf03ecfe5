package middleware

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lib/pq"
)

// limitWaitStatement sets lock_timeout for the transaction and returns what it was.
// The CTE is materialized so that it is read before it is set. In the same round trip
// it makes the commit durable: the message is acked right after it.
func limitWaitStatement(limit time.Duration) string {
	// Rounded up: zero would be no limit.
	milliseconds := (limit + time.Millisecond - 1) / time.Millisecond
	return fmt.Sprintf(`WITH before AS MATERIALIZED (SELECT pg_catalog.current_setting('lock_timeout') AS value)
		SELECT value, pg_catalog.set_config('lock_timeout', '%dms', true),
			CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'
				THEN pg_catalog.set_config('synchronous_commit', 'on', true) END
		FROM before`, milliseconds)
}

// boundWait bounds how long the next statement waits for another transaction, and
// returns the former lock_timeout.
func (i *Inbox) boundWait(ctx context.Context, tx *sql.Tx) (before string, err error) {
	var now, durable sql.Null[string]
	if err := tx.QueryRowContext(ctx, i.limitWait).Scan(&before, &now, &durable); err != nil {
		return "", fmt.Errorf("middleware: set lock_timeout: %w", err)
	}
	return before, nil
}

// restoreWait puts lock_timeout back as it was, for the handler. The value is a
// literal, since a parameter costs lib/pq a second round trip.
func restoreWait(ctx context.Context, tx *sql.Tx, before string) error {
	if _, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = `+pq.QuoteLiteral(before)); err != nil {
		return fmt.Errorf("middleware: restore lock_timeout: %w", err)
	}
	return nil
}

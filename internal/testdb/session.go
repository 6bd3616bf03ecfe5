package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// EndSession ends the session of that backend and returns once it is gone. (Before
// version 14, pg_terminate_backend does not wait.)
func EndSession(ctx context.Context, db *sql.DB, backend int) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	var found bool
	if err := db.QueryRowContext(ctx, `SELECT pg_catalog.pg_terminate_backend($1)`, backend).Scan(&found); err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	if !found {
		return fmt.Errorf("end session: there is no backend %d", backend)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for found {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("end session: %w", ctx.Err())
		}
		err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = $1)`, backend).Scan(&found)
		if err != nil {
			return fmt.Errorf("end session: %w", err)
		}
	}
	return nil
}

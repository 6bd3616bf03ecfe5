package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/watermill-outbox/outbox/schema"
)

// privilegesError is what Postgres would say itself, but before a message is sent: a
// forwarder that may read rows and not delete them would send them for ever.
type privilegesError struct {
	role    string
	missing []string
}

func (e privilegesError) Error() string {
	return fmt.Sprintf("the role %q lacks %s", e.role, strings.Join(e.missing, " and "))
}

// SQLState is the one that Postgres would give.
func (e privilegesError) SQLState() string { return insufficientPrivilege }

// privileges are what a forwarder must be granted. A grant for columns may be enough to
// read and to lock rows, so that any column will do.
func privileges(s schema.Postgres) []privilege {
	return []privilege{
		{name: "SELECT", table: s.Outbox(), test: "has_any_column_privilege"},
		{name: "UPDATE", table: s.Outbox(), test: "has_any_column_privilege"},
		{name: "DELETE", table: s.Outbox(), test: "has_table_privilege"},
		{name: "SELECT", table: s.Settings(), test: "has_any_column_privilege"},
		{name: "SELECT", table: s.DeadLetters(), test: "has_any_column_privilege"},
		{name: "INSERT", table: s.DeadLetters(), test: "has_any_column_privilege"},
		{name: "SELECT", table: s.Absences(), test: "has_any_column_privilege"},
		{name: "INSERT", table: s.Absences(), test: "has_any_column_privilege"},
		{name: "UPDATE", table: s.Absences(), test: "has_any_column_privilege"},
		{name: "DELETE", table: s.Absences(), test: "has_table_privilege"},
	}
}

type privilege struct{ name, table, test string }

func requirePrivileges(ctx context.Context, tx *sql.Tx, s schema.Postgres) error {
	var found privilegesError
	for _, p := range privileges(s) {
		var granted bool
		err := tx.QueryRowContext(ctx, `SELECT pg_catalog.`+p.test+`($1::text, $2::text), current_user::text`,
			p.table, p.name).Scan(&granted, &found.role)
		if err != nil {
			return fmt.Errorf("look for the grant of %s on %s: %w", p.name, p.table, err)
		}
		if !granted {
			found.missing = append(found.missing, p.name+" on "+p.table)
		}
	}
	if len(found.missing) > 0 {
		return found
	}
	return nil
}

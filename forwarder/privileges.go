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
		ofAnyColumn("SELECT", s.Outbox()),
		ofAnyColumn("UPDATE", s.Outbox()),
		ofTable("DELETE", s.Outbox()),
		ofAnyColumn("SELECT", s.Settings()),
		ofAnyColumn("SELECT", s.DeadLetters()),
		ofAnyColumn("INSERT", s.DeadLetters()),
		ofAnyColumn("SELECT", s.Absences()),
		ofAnyColumn("INSERT", s.Absences()),
		ofAnyColumn("UPDATE", s.Absences()),
		ofTable("DELETE", s.Absences()),
	}
}

func ofAnyColumn(name, table string) privilege {
	return privilege{name: name, table: table, test: "has_any_column_privilege"}
}

func ofTable(name, table string) privilege {
	return privilege{name: name, table: table, test: "has_table_privilege"}
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

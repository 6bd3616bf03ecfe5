package schema

import (
	"errors"
	"fmt"
)

// ErrPreparedStatement says that the driver keeps prepared statements on connections
// that it shares with other clients: it met one that is not there, or that somebody else
// has made. This is what pgx does by default behind PgBouncer in transaction mode. It is
// a matter of configuration, and trying again does not help: set
// default_query_exec_mode=exec (or cache_describe) in pgx's connection string,
// binary_parameters=yes in that of lib/pq, or PgBouncer's max_prepared_statements, which
// it has since version 1.21.
var ErrPreparedStatement = errors.New("schema: prepared statements do not last on a connection that a pooler such as PgBouncer shares: " +
	"set default_query_exec_mode=exec in the connection string of pgx (binary_parameters=yes for lib/pq), " +
	"or max_prepared_statements in PgBouncer 1.21 or newer")

// Explain adds to an error of the database what is to be done about it, where that is
// known: it makes ErrNotMigrated of it as Missing does, or ErrPreparedStatement where a
// prepared statement is missing or exists already (SQLSTATE 26000 or 42P05). Other
// errors, and nil, stay as they are.
func Explain(err error) error { return explainPrepared(Missing(err)) }

func explainPrepared(err error) error {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || errors.Is(err, ErrPreparedStatement) {
		return err
	}
	const (
		invalidStatementName = "26000"
		duplicateStatement   = "42P05"
	)
	if code := state.SQLState(); code == invalidStatementName || code == duplicateStatement {
		return fmt.Errorf("%w: %w", ErrPreparedStatement, err)
	}
	return err
}

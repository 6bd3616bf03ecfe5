package forwarder

import (
	"database/sql"
	"errors"
	"strings"

	"github.com/watermill-outbox/outbox/schema"
)

// SQLSTATEs (Postgres manual, "PostgreSQL Error Codes").
const (
	// lockNotAvailable is that of a wait that lock_timeout ended.
	lockNotAvailable      = "55P03"
	insufficientPrivilege = "42501"
	// cannotConnectNow is that of a server that shuts down, or starts.
	cannotConnectNow = "57P03"
	// queryCanceled is that of a statement that statement_timeout ended.
	queryCanceled       = "57014"
	readOnlyTransaction = "25006"
	// featureNotSupported is that of a standby which is asked for READ WRITE.
	featureNotSupported = "0A000"
)

// errStandby says that a server begins no transaction that writes: it is not, or no longer,
// the primary.
var errStandby = errors.New("forwarder: the database is a standby")

// isReadOnly reports whether a server takes no writes. lib/pq says READ WRITE as it begins,
// which a standby refuses in its own way; pgx does not.
func isReadOnly(err error) bool {
	return errors.Is(err, errStandby) || hasSQLState(err, readOnlyTransaction)
}

// databaseTrouble says what is wrong in words for whoever is called at night.
func databaseTrouble(err error) string {
	if errors.Is(schema.Explain(err), schema.ErrPreparedStatement) {
		return "Driver's settings do not go with the pooler before the database, messages stay in the outbox"
	}
	const tables = "Tables of the outbox are not as they should be, messages stay in the outbox"
	if errors.Is(err, schema.ErrNotMigrated) {
		return tables
	}
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return "Database is unavailable, messages stay in the outbox"
	}
	code := state.SQLState()
	switch {
	case code == lockNotAvailable:
		return "Rows of the outbox are locked by others, their units wait"
	case isReadOnly(err):
		return "Database is read-only, messages stay in the outbox"
	case strings.HasPrefix(code, "28"), code == "3D000", code == insufficientPrivilege:
		return "Database refuses the forwarder, messages stay in the outbox"
	case strings.HasPrefix(code, "42"), code == "3F000":
		return tables
	default:
		return "Database is in trouble, messages stay in the outbox"
	}
}

// hasSQLState reports whether err comes from Postgres with that code. The errors of
// lib/pq and of pgx both have the method.
func hasSQLState(err error, code string) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == code
}

// isAnswer reports whether Postgres itself said err, and not as it ended the session
// (57P01 and its like) or about a connection (class 08).
func isAnswer(err error) bool {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return false
	}
	code := state.SQLState()
	return !strings.HasPrefix(code, "57P") && !strings.HasPrefix(code, "08")
}

func isNoRows(err error) bool { return errors.Is(err, sql.ErrNoRows) }

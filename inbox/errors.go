package inbox

import "errors"

var (
	// ErrIDReused says that the consumer has handled an event of the same id with
	// different content: the producer gave one id to two events (often the id of the
	// aggregate). It is permanent: a further delivery fails in the same way. The event
	// was not handled; what becomes of it is for a person to decide.
	ErrIDReused = errors.New("inbox: the event id was used before with different content")
	// ErrInvalidKey says that a key cannot be stored. The error that wraps it names the
	// rule. It is permanent, and nothing was sent to the database.
	ErrInvalidKey = errors.New("inbox: invalid key")
	// ErrBusy says that another transaction is handling the same event and did not end
	// within Postgres' lock_timeout. It is transient: deliver the event again.
	ErrBusy = errors.New("inbox: the event is being handled by another transaction")
	// ErrEncoding says that the session's client_encoding is not UTF8, in which a key
	// would be taken for another one: a default of the role or the database that pgx
	// leaves as it is. Put client_encoding=UTF8 into the connection string.
	ErrEncoding = errors.New("inbox: the session's client_encoding must be UTF8")
	// ErrInvalidLimits says that limits are out of range. Nothing was sent to the database.
	ErrInvalidLimits = errors.New("inbox: invalid limits")
	// ErrInvalidAge says that DeleteOlderThan was called with an age that is not
	// positive. Nothing was deleted.
	ErrInvalidAge = errors.New("inbox: the age must be positive")
)

// SQLSTATEs (Postgres manual, "PostgreSQL Error Codes").
const (
	// lockNotAvailable is that of a wait that lock_timeout ended.
	lockNotAvailable = "55P03"
	// untranslatableCharacter is what the function that records says of another encoding.
	untranslatableCharacter = "22P05"
	undefinedFunction       = "42883"
)

// hasSQLState reports whether err comes from Postgres with that code. The errors of
// lib/pq and of pgx both have the method.
func hasSQLState(err error, code string) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == code
}

package forwarder

import "errors"

// lockNotAvailable is the SQLSTATE of a wait that lock_timeout ended (Postgres manual,
// "PostgreSQL Error Codes").
const lockNotAvailable = "55P03"

// hasSQLState reports whether err comes from Postgres with that code. The errors of
// lib/pq and of pgx both have the method.
func hasSQLState(err error, code string) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == code
}

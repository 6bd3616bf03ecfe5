package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-outbox/outbox/schema"
)

// Admin is for whoever looks after an outbox: it says what waits and why, and sends again
// or discards what has failed for good. It works beside running forwarders, in short
// transactions of its own, and needs none of them. Its methods are safe for concurrent use,
// also by several processes.
//
// Errors of the database keep their SQLSTATE; where the tables are missing or too old they
// wrap schema.ErrNotMigrated.
type Admin struct {
	db     *sql.DB
	schema schema.Postgres
}

// NewAdmin returns an Admin of the outbox that s names. It does not touch the database, and
// never closes it. Errors wrap ErrInvalidConfig or schema.ErrInvalidName.
func NewAdmin(db *sql.DB, s schema.Postgres) (*Admin, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: db is nil", ErrInvalidConfig)
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("forwarder: admin: %w", err)
	}
	return &Admin{db: db, schema: s}, nil
}

// adminSettings are those of each of its transactions, whatever the server's, the role's or
// the session's defaults are. A lane is waited for longer than a batch takes, and no lock
// for ever.
const adminSettings = `SET LOCAL search_path = pg_catalog; SET LOCAL client_encoding = UTF8; SET LOCAL bytea_output = hex;
	SET LOCAL row_security = off; SET LOCAL jit = off; SET LOCAL statement_timeout = '120s'; SET LOCAL lock_timeout = '60s';
	SET LOCAL idle_in_transaction_session_timeout = '30s'; SET LOCAL datestyle = ISO`

// read runs statements that change nothing, on a standby too.
func (a *Admin) read(ctx context.Context, run func(tx *sql.Tx) error) error {
	return a.inTx(ctx, true, run)
}

func (a *Admin) write(ctx context.Context, run func(tx *sql.Tx) error) error {
	return a.inTx(ctx, false, run)
}

// inTx keeps statements and their parameters together behind a pooler. The level is said:
// each statement is to see what was committed before it, and above READ COMMITTED a row
// that a forwarder has changed meanwhile would be a failure.
func (a *Admin) inTx(ctx context.Context, readOnly bool, run func(tx *sql.Tx) error) (err error) {
	tx, err := a.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: readOnly})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if rollbackErr := tx.Rollback(); err != nil && ctx.Err() == nil && !errors.Is(rollbackErr, sql.ErrTxDone) {
			err = errors.Join(err, rollbackErr)
		}
	}()
	if _, err := tx.ExecContext(ctx, adminSettings); err != nil {
		return fmt.Errorf("settings: %w", schema.Explain(err))
	}
	if err := run(tx); err != nil {
		return explainAdmin(err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// explainAdmin knows the columns of an earlier version, too.
func explainAdmin(err error) error {
	const undefinedColumn = "42703"
	if hasSQLState(err, undefinedColumn) {
		return fmt.Errorf("%w: %w", schema.ErrNotMigrated, err)
	}
	return schema.Explain(err)
}

// asText is a moment in a form that Postgres and drivers exchange as it is, whatever the
// session's formats are: some ways of pgx read times only where the datestyle is ISO. What
// is infinite is NULL.
func asText(moment string) string {
	return `CASE WHEN isfinite(` + moment + `) THEN to_char(timezone('UTC', ` + moment + `), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END`
}

// textTime reads asText. It is zero for NULL, and for years that Go does not parse.
func textTime(text sql.NullString) time.Time {
	moment, err := time.Parse(time.RFC3339Nano, text.String)
	if err != nil {
		return time.Time{}
	}
	return moment
}

// readAll scans every line of a query.
func readAll(ctx context.Context, tx *sql.Tx, query string, scan func(rows *sql.Rows) error, args ...any) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err //nolint:wrapcheck // the caller knows what was read
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err() //nolint:wrapcheck // the caller knows what was read
}

package inbox

import (
	"context"
	"fmt"
	"reflect"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/schema"
)

// Config configures a Store. The zero value works.
type Config struct {
	// Schema names the inbox table. Default: public.inbox.
	Schema schema.Postgres
	// IgnoreContent turns the comparison of digests off: a second event with the id of
	// an earlier one is then taken for its repetition and dropped, whatever it says and
	// from whichever topic it comes. Handlers of different topics then need consumers of
	// their own, if an event may be passed on under its id. No digest is stored either.
	// Default: false.
	IgnoreContent bool
}

// Validate reports names that cannot be Postgres identifiers.
func (c Config) Validate() error {
	if err := c.Schema.Validate(); err != nil {
		return fmt.Errorf("inbox: store config: %w", err)
	}
	return nil
}

// Store records the keys of handled events in the inbox table. It is safe for
// concurrent use.
type Store struct {
	config     Config
	statements statements
}

type statements struct {
	insert       string
	insertWithin string
	findConflict string
	deleteBatch  string
}

// NewStore returns a Store. It does not touch the database: the table comes from
// schema.Postgres.Migrate.
func NewStore(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	table := cfg.Schema.Inbox()
	into := `INSERT INTO ` + table + ` (consumer, event_id, digest) `
	const (
		values      = `CASE WHEN pg_catalog.pg_client_encoding() IN ('UTF8', 'SQL_ASCII') THEN $1::text END, $2::text, $3::bytea`
		unlessThere = ` ON CONFLICT (consumer, event_id) DO NOTHING`
	)
	return &Store{config: cfg, statements: statements{
		// A session of another encoding would turn both texts into other ones. NULL is
		// refused instead.
		insert:       into + `VALUES (` + values + `)` + unlessThere,
		insertWithin: into + `VALUES (` + values + `)` + unlessThere + ` RETURNING ` + restoredWait,
		// A stored NULL compares as "unknown": no conflict.
		findConflict: `SELECT 1 FROM ` + table + `
			WHERE consumer = $1::text AND event_id = $2::text AND digest <> $3::bytea`,
		deleteBatch: deleteBatchStatement(table),
	}}, nil
}

// Record writes key in tx and reports whether it is fresh. If it is, handle the event
// in the same transaction and commit; if it is not, the event was handled before (or
// earlier in this transaction): skip it. A duplicate raises no error in Postgres, so
// tx stays usable.
//
// While another open transaction holds the same key, Record waits: the key is not
// fresh if that one commits, and fresh if it rolls back. The transaction's
// lock_timeout bounds the wait (Postgres' default: no bound); when it ends, the error
// wraps ErrBusy. ctx bounds it too.
//
// The transaction should be READ COMMITTED. In REPEATABLE READ and SERIALIZABLE, a
// key that was committed after the transaction's snapshot raises a serialization
// failure (SQLSTATE 40001): run the whole transaction again.
//
// Errors wrap ErrInvalidKey, outbox.ErrNoTx or ErrIDReused, after which tx is still
// usable; or ErrBusy or ErrEncoding, or come from the database, after which Postgres
// lets tx only roll back.
func (s *Store) Record(ctx context.Context, tx outbox.Tx, key Key) (fresh bool, err error) {
	if err := check(tx, key); err != nil {
		return false, err
	}
	return s.record(ctx, tx, key, s.statements.insert)
}

// RecordWithin is Record, and sets limits for tx before.
//
// Where the key is not fresh, tx is left with a lock_timeout of limits.Wait.
func (s *Store) RecordWithin(ctx context.Context, tx outbox.Tx, key Key, limits Limits) (fresh bool, err error) {
	if err := limits.Validate(); err != nil {
		return false, err
	}
	if err := check(tx, key); err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, limits.statement()); err != nil {
		return false, fmt.Errorf("inbox: set limits: %w", err)
	}
	return s.record(ctx, tx, key, s.statements.insertWithin)
}

func (s *Store) record(ctx context.Context, tx outbox.Tx, key Key, insert string) (fresh bool, err error) {
	inserted, err := s.exec(ctx, tx, insert, key)
	if err != nil {
		return false, err
	}
	if inserted > 0 {
		return true, nil
	}
	return false, s.compareContent(ctx, tx, key)
}

func check(tx outbox.Tx, key Key) error {
	if isNil(tx) {
		return outbox.ErrNoTx
	}
	return key.Validate()
}

// isNil sees a nil *sql.Tx as well, which is what a caller has after ignoring an error.
func isNil(tx outbox.Tx) bool {
	if tx == nil {
		return true
	}
	value := reflect.ValueOf(tx)
	return value.Kind() == reflect.Pointer && value.IsNil()
}

// compareContent is a statement of its own so that it has a snapshot of its own: it
// sees the key of a transaction that committed while the INSERT waited for it.
func (s *Store) compareContent(ctx context.Context, tx outbox.Tx, key Key) error {
	if s.digest(key) == nil {
		return nil
	}
	conflicts, err := s.exec(ctx, tx, s.statements.findConflict, key)
	if err != nil {
		return err
	}
	if conflicts > 0 {
		return fmt.Errorf("%w: consumer %q, event id %q", ErrIDReused, key.Consumer, key.EventID)
	}
	return nil
}

// exec returns how many rows the statement gave or wrote. That is what outbox.Tx
// offers, for a SELECT as well.
func (s *Store) exec(ctx context.Context, tx outbox.Tx, statement string, key Key) (int64, error) {
	result, err := tx.ExecContext(ctx, statement, key.Consumer, key.EventID, s.digest(key))
	if hasSQLState(err, lockNotAvailable) {
		return 0, fmt.Errorf("%w: consumer %q, event id %q: %w", ErrBusy, key.Consumer, key.EventID, err)
	}
	if hasSQLState(err, notNullViolation) {
		return 0, fmt.Errorf("%w: %w", ErrEncoding, err)
	}
	if err != nil {
		return 0, fmt.Errorf("inbox: record in %s: %w", s.config.Schema.Inbox(), schema.Explain(err))
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("inbox: record in %s: %w", s.config.Schema.Inbox(), err)
	}
	return rows, nil
}

// digest is what is stored and compared: nil, which is NULL, where content is not.
func (s *Store) digest(key Key) []byte {
	if s.config.IgnoreContent || len(key.Digest) == 0 {
		return nil
	}
	return key.Digest
}

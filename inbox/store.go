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
	record      string
	deleteBatch string
}

// NewStore returns a Store. It does not touch the database: the table comes from
// schema.Postgres.Migrate.
func NewStore(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Store{config: cfg, statements: statements{
		// The number of rows is all that outbox.Tx tells: none, one or two.
		record: `SELECT FROM pg_catalog.generate_series(1, ` + cfg.Schema.RecordFunction() +
			`($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.bytea, $4::pg_catalog.int4, $5::pg_catalog.int4))`,
		deleteBatch: deleteBatchStatement(cfg.Schema.Inbox()),
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
	return s.record(ctx, tx, key, nil, nil)
}

// RecordWithin is Record, and sets limits for tx before.
func (s *Store) RecordWithin(ctx context.Context, tx outbox.Tx, key Key, limits Limits) (fresh bool, err error) {
	if err := limits.Validate(); err != nil {
		return false, err
	}
	if err := check(tx, key); err != nil {
		return false, err
	}
	return s.record(ctx, tx, key, milliseconds(limits.Wait), milliseconds(limits.Idle))
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

// record hands the limits to the function that records; nil has it leave all settings alone.
func (s *Store) record(ctx context.Context, tx outbox.Tx, key Key, wait, idle any) (fresh bool, err error) {
	result, err := tx.ExecContext(ctx, s.statements.record, key.Consumer, key.EventID, s.digest(key), wait, idle)
	if err != nil {
		return false, s.explain(key, err)
	}
	outcome, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("inbox: record in %s: %w", s.config.Schema.Inbox(), err)
	}
	const other = 2
	if outcome == other {
		return false, fmt.Errorf("%w: consumer %q, event id %q", ErrIDReused, key.Consumer, key.EventID)
	}
	return outcome == 1, nil
}

func (s *Store) explain(key Key, err error) error {
	switch {
	case hasSQLState(err, lockNotAvailable):
		return fmt.Errorf("%w: consumer %q, event id %q: %w", ErrBusy, key.Consumer, key.EventID, err)
	case hasSQLState(err, untranslatableCharacter):
		return fmt.Errorf("%w: %w", ErrEncoding, err)
	case hasSQLState(err, undefinedFunction):
		err = fmt.Errorf("%w: %w", schema.ErrNotMigrated, err)
	}
	return fmt.Errorf("inbox: record in %s: %w", s.config.Schema.Inbox(), schema.Explain(err))
}

// digest is what is stored and compared: nil, which is NULL, where content is not.
func (s *Store) digest(key Key) []byte {
	if s.config.IgnoreContent || len(key.Digest) == 0 {
		return nil
	}
	return key.Digest
}

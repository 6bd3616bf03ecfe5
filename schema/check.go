package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

var (
	// ErrNotMigrated says that the tables are missing, or older than this version of
	// the module, or that the settings table has lost its row: call Migrate.
	ErrNotMigrated = errors.New("schema: the tables are missing or too old, call Migrate")
	// ErrIncomplete says that some of the tables that belong together were dropped, and
	// others were not. Nothing was touched: restore what is missing, or drop the others
	// as well, once nothing of theirs is needed, and call Migrate.
	ErrIncomplete = errors.New("schema: some of the tables are missing")
	// ErrSequenceCache says that the sequence behind the outbox's seq hands out numbers
	// in blocks. The order of seq within an ordering unit is then no longer the order
	// of commits; set it back with ALTER TABLE … ALTER COLUMN seq SET CACHE 1.
	ErrSequenceCache = errors.New("schema: the sequence of the outbox must have CACHE 1")
)

// Missing makes ErrNotMigrated of an error that says that a table or the schema does not
// exist (SQLSTATE 42P01 or 3F000). Other errors, and nil, stay as they are.
func Missing(err error) error {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && (state.SQLState() == "42P01" || state.SQLState() == "3F000") {
		return fmt.Errorf("%w: %w", ErrNotMigrated, err)
	}
	return err
}

// Check reports whether the tables are there in the version of this module, the
// database is encoded in UTF8, the outbox's sequence is as order needs it, and the
// settings are there, as far as the role may read them. It only reads. Errors wrap
// ErrInvalidName, ErrNotUTF8, ErrNotMigrated, ErrIncomplete, ErrNewerSchema,
// ErrSequenceCache or ErrPreparedStatement, or come from the database.
func (s Postgres) Check(ctx context.Context, db *sql.DB) error {
	if err := s.Validate(); err != nil {
		return err
	}
	// In a transaction: outside of one, lib/pq sends a statement and its parameters
	// separately, and behind PgBouncer they may meet with another client's.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return fmt.Errorf("schema: check: begin: %w", err)
	}
	defer tx.Rollback()
	return explainPrepared(s.check(ctx, tx))
}

func (s Postgres) check(ctx context.Context, tx *sql.Tx) error {
	if err := requireUTF8(ctx, tx); err != nil {
		return err
	}
	exists, err := s.relationExists(ctx, tx, migrationsTable)
	if err != nil {
		return err
	}
	if !exists {
		return fmt.Errorf("%w: no migration has run in schema %q", ErrNotMigrated, s.withDefaults().Schema)
	}
	for _, c := range s.components() {
		if err := s.checkVersion(ctx, tx, c); err != nil {
			return err
		}
	}
	if err := s.checkSequence(ctx, tx); err != nil {
		return err
	}
	return s.checkSettings(ctx, tx)
}

func (s Postgres) checkVersion(ctx context.Context, tx *sql.Tx, c component) error {
	files, err := migrationsOf(c.kind)
	if err != nil {
		return err
	}
	version, err := s.appliedVersion(ctx, tx, c)
	if err != nil {
		return err
	}
	if version < len(files) {
		return fmt.Errorf("%w: %s is at version %d, this module needs %d", ErrNotMigrated, s.qualified(c.table), version, len(files))
	}
	if version > len(files) {
		return fmt.Errorf("%w: %s is at version %d, this module knows %d", ErrNewerSchema, s.qualified(c.table), version, len(files))
	}
	exist, err := s.tablesExist(ctx, tx, c.kind, version)
	if err != nil {
		return err
	}
	if !exist {
		return fmt.Errorf("%w: %s was dropped", ErrNotMigrated, s.qualified(c.table))
	}
	return nil
}

func (s Postgres) checkSequence(ctx context.Context, tx *sql.Tx) error {
	var cache int64
	err := tx.QueryRowContext(ctx, `SELECT seqcache FROM pg_catalog.pg_sequence
		WHERE seqrelid = pg_catalog.pg_get_serial_sequence($1, 'seq')::pg_catalog.regclass::pg_catalog.oid`, s.Outbox()).Scan(&cache)
	if err != nil {
		return fmt.Errorf("schema: read the sequence of %s: %w", s.Outbox(), err)
	}
	if cache != 1 {
		return fmt.Errorf("%w: %s has CACHE %d", ErrSequenceCache, s.Outbox(), cache)
	}
	return nil
}

func (s Postgres) checkSettings(ctx context.Context, tx *sql.Tx) error {
	lost, err := s.settingsLost(ctx, tx)
	if err != nil {
		return err
	}
	if lost {
		return fmt.Errorf("%w: %s is empty", ErrNotMigrated, s.Settings())
	}
	return nil
}

// settingsLost does not look where the role may not: only a forwarder needs the settings.
func (s Postgres) settingsLost(ctx context.Context, tx *sql.Tx) (bool, error) {
	var readable, exist bool
	err := tx.QueryRowContext(ctx, `SELECT pg_catalog.has_any_column_privilege($1::text, 'SELECT')`, s.Settings()).Scan(&readable)
	if err != nil {
		return false, fmt.Errorf("schema: look for the grant of SELECT on %s: %w", s.Settings(), err)
	}
	if !readable {
		return false, nil
	}
	if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM `+s.Settings()+`)`).Scan(&exist); err != nil {
		return false, fmt.Errorf("schema: read %s: %w", s.Settings(), err)
	}
	return !exist, nil
}

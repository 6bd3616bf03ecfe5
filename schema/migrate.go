package schema

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"text/template"
)

// migrationsTable says which tables of its schema are ours, and in which version.
// Its name is fixed, so that several outboxes in one schema share it.
const migrationsTable = "watermill_outbox_migrations"

var (
	// ErrForeignTable says that a table with a configured name exists which Migrate
	// did not create. It was not touched: choose another name, or move the table.
	ErrForeignTable = errors.New("schema: a table of that name exists and is not ours")
	// ErrNotUTF8 says that the database's encoding is not UTF8. Payloads and ids would
	// not survive another one; create the database with ENCODING 'UTF8'.
	ErrNotUTF8 = errors.New("schema: the database is not encoded in UTF8")
	// ErrNewerSchema says that the tables were migrated by a newer version of this
	// module than the one that runs.
	ErrNewerSchema = errors.New("schema: the tables are newer than this version of the module")
)

// migrateSettings keep what a session brings out of what stays: the functions behind
// the defaults of columns, and names that are not ASCII.
const migrateSettings = `SET LOCAL search_path = pg_catalog; SET LOCAL client_encoding = UTF8`

//go:embed migrations/*/*.sql
var migrationFiles embed.FS

const (
	kindOutbox = "outbox"
	kindInbox  = "inbox"
)

// component is a group of tables with a version of its own: the outbox with its
// companions, or the inbox, which several outboxes may share.
type component struct {
	kind  string // folder of the migration files
	table string // unquoted; the key in the migrations table
}

func (s Postgres) components() []component {
	s = s.withDefaults()
	return []component{
		{kind: kindOutbox, table: s.Name},
		{kind: kindInbox, table: s.InboxName},
	}
}

// Migrate creates the tables of s, or brings them to the version of this module:
// the outbox, its dead letters and settings, the inbox, and the schema itself if it
// is missing. It works in one transaction under an advisory lock, so that any number
// of processes may call it as they start, and it does nothing, not even take rights
// to create, where everything is up to date. Tables that were dropped are created anew,
// and so is the row of a settings table that was emptied. It does not depend on
// search_path.
//
// Errors wrap ErrInvalidName, ErrNotUTF8, ErrForeignTable, ErrIncomplete, ErrNewerSchema
// or ErrPreparedStatement, or come from the database; after any error nothing has
// changed.
func (s Postgres) Migrate(ctx context.Context, db *sql.DB) (err error) {
	if err := s.Validate(); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("schema: migrate: begin: %w", err)
	}
	defer func() {
		// After the end of ctx database/sql has rolled back, or dropped the connection.
		if rollbackErr := tx.Rollback(); err != nil && ctx.Err() == nil {
			err = errors.Join(err, ignoreDone(rollbackErr))
		}
	}()

	if err := s.migrate(ctx, tx); err != nil {
		return explainPrepared(err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("schema: migrate: commit: %w", err)
	}
	return nil
}

func (s Postgres) migrate(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, migrateSettings); err != nil {
		return fmt.Errorf("schema: migrate: settings: %w", err)
	}
	if err := requireUTF8(ctx, tx); err != nil {
		return err
	}
	// A transaction's lock, since a session's would outlive its transaction in
	// another client's hands under PgBouncer.
	lock := lockKey("migrate", s.withDefaults().Schema)
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, lock); err != nil {
		return fmt.Errorf("schema: migrate: lock: %w", err)
	}
	return s.migrateAll(ctx, tx)
}

func (s Postgres) migrateAll(ctx context.Context, tx *sql.Tx) error {
	if err := s.ensureMigrationsTable(ctx, tx); err != nil {
		return err
	}
	for _, c := range s.components() {
		if err := s.migrateComponent(ctx, tx, c); err != nil {
			return err
		}
	}
	return s.restoreSettings(ctx, tx)
}

func (s Postgres) migrateComponent(ctx context.Context, tx *sql.Tx, c component) error {
	files, err := migrationsOf(c.kind)
	if err != nil {
		return err
	}
	version, err := s.appliedVersion(ctx, tx, c)
	if err != nil {
		return err
	}
	if version > len(files) {
		return fmt.Errorf("%w: %s is at version %d, this module knows %d", ErrNewerSchema, s.qualified(c.table), version, len(files))
	}
	if version > 0 {
		exist, err := s.tablesExist(ctx, tx, c.kind, version)
		if err != nil {
			return err
		}
		if !exist { // all of them were dropped
			version = 0
		}
	}
	if err := s.requireFree(ctx, tx, c.kind, version); err != nil {
		return err
	}
	for i := version; i < len(files); i++ {
		if err := s.apply(ctx, tx, files[i]); err != nil {
			return err
		}
	}
	if version == len(files) {
		return nil
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO `+s.qualified(migrationsTable)+` (table_name, kind, version) VALUES ($1, $2, $3)
		ON CONFLICT (table_name) DO UPDATE SET version = EXCLUDED.version, applied_at = now()`,
		c.table, c.kind, len(files))
	if err != nil {
		return fmt.Errorf("schema: migrate: record version: %w", err)
	}
	return nil
}

// restoreSettings mends what a TRUNCATE of all tables, say, has emptied. It takes the
// right to write only where the row is missing.
func (s Postgres) restoreSettings(ctx context.Context, tx *sql.Tx) error {
	lost, err := s.settingsLost(ctx, tx)
	if err != nil || !lost {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO `+s.Settings()+` (lanes) VALUES (64)`); err != nil {
		return fmt.Errorf("schema: migrate: restore %s: %w", s.Settings(), err)
	}
	return nil
}

func (s Postgres) appliedVersion(ctx context.Context, tx querier, c component) (int, error) {
	var (
		kind    string
		version int
	)
	err := tx.QueryRowContext(ctx,
		`SELECT kind, version FROM `+s.qualified(migrationsTable)+` WHERE table_name = $1`, c.table).Scan(&kind, &version)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("schema: read version of %s: %w", s.qualified(c.table), err)
	case kind != c.kind:
		return 0, fmt.Errorf("%w: %s is an %s", ErrForeignTable, s.qualified(c.table), kind)
	}
	return version, nil
}

// tablesExist tells a component whose tables were all dropped from one that is there, in a
// version.
func (s Postgres) tablesExist(ctx context.Context, tx querier, kind string, version int) (bool, error) {
	var missing []string
	found := 0
	for _, relation := range s.relations() {
		if relation.kind != kind || !relation.isTable || relation.since > version {
			continue
		}
		exists, err := s.relationExists(ctx, tx, relation.name)
		if err != nil {
			return false, err
		}
		if exists {
			found++
		} else {
			missing = append(missing, s.qualified(relation.name))
		}
	}
	if found > 0 && len(missing) > 0 {
		return false, fmt.Errorf("%w: %s", ErrIncomplete, strings.Join(missing, ", "))
	}
	return found > 0, nil
}

// requireFree looks at every relation that is to be created on top of a version.
func (s Postgres) requireFree(ctx context.Context, tx *sql.Tx, kind string, version int) error {
	for _, relation := range s.relations() {
		if relation.kind != kind || relation.since <= version {
			continue
		}
		exists, err := s.relationExists(ctx, tx, relation.name)
		if err != nil {
			return err
		}
		if exists {
			return fmt.Errorf("%w: %s", ErrForeignTable, s.qualified(relation.name))
		}
	}
	return nil
}

func (s Postgres) relationExists(ctx context.Context, tx querier, name string) (bool, error) {
	var exists bool
	err := tx.QueryRowContext(ctx, `SELECT EXISTS (
		SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2)`, s.withDefaults().Schema, name).Scan(&exists)
	if err != nil {
		return false, fmt.Errorf("schema: look for %s: %w", s.qualified(name), err)
	}
	return exists, nil
}

func (s Postgres) ensureMigrationsTable(ctx context.Context, tx *sql.Tx) error {
	exists, err := s.relationExists(ctx, tx, migrationsTable)
	if err != nil || exists {
		return err
	}
	if err := s.ensureSchema(ctx, tx); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `CREATE TABLE `+s.qualified(migrationsTable)+` (
		table_name text PRIMARY KEY,
		kind text NOT NULL,
		version integer NOT NULL,
		applied_at timestamptz NOT NULL DEFAULT now())`)
	if err != nil {
		return fmt.Errorf("schema: migrate: create migrations table: %w", err)
	}
	return nil
}

// ensureSchema asks first: CREATE SCHEMA IF NOT EXISTS needs the right to create
// even where the schema exists.
func (s Postgres) ensureSchema(ctx context.Context, tx *sql.Tx) error {
	name := s.withDefaults().Schema
	var exists bool
	err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`, name).Scan(&exists)
	if err != nil {
		return fmt.Errorf("schema: look for schema %q: %w", name, err)
	}
	if exists {
		return nil
	}
	if _, err := tx.ExecContext(ctx, `CREATE SCHEMA `+quote(name)); err != nil {
		return fmt.Errorf("schema: create schema %q: %w", name, err)
	}
	return nil
}

func (s Postgres) apply(ctx context.Context, tx *sql.Tx, file string) error {
	text, err := migrationFiles.ReadFile(file)
	if err != nil {
		return fmt.Errorf("schema: migrate: %w", err)
	}
	tmpl, err := template.New(file).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return fmt.Errorf("schema: migrate: %w", err)
	}
	var statements strings.Builder
	err = tmpl.Execute(&statements, map[string]string{
		"Outbox":                s.Outbox(),
		"DeadLetters":           s.DeadLetters(),
		"Settings":              s.Settings(),
		"Absences":              s.Absences(),
		"Slots":                 s.Slots(),
		"Inbox":                 s.Inbox(),
		"BackoffIndex":          quote(s.backoffIndexName()),
		"BackoffIndexQualified": s.qualified(s.backoffIndexName()),
		"WaitingIndex":          quote(s.waitingIndexName()),
		"BlockedIndex":          quote(s.blockedIndexName()),
		"DeadAtIndex":           quote(s.deadAtIndexName()),
		"RetentionIndex":        quote(s.retentionIndexName()),
		"RecordFunction":        s.RecordFunction(),
		"WakeUpFunction":        s.wakeUpFunction(),
		"WakeUpTrigger":         quote(WakeUpTrigger),
		"WakeUpLock":            s.wakeUpArguments(),
		"WakeUpChannel":         s.WakeUpChannel(),
	})
	if err != nil {
		return fmt.Errorf("schema: migrate: %w", err)
	}
	if _, err := tx.ExecContext(ctx, statements.String()); err != nil {
		return fmt.Errorf("schema: migrate: %s: %w", path.Base(file), err)
	}
	return nil
}

// migrationsOf lists a component's files in order; their number is its version.
func migrationsOf(kind string) ([]string, error) {
	files, err := fs.Glob(migrationFiles, "migrations/"+kind+"/*.sql")
	if err != nil {
		return nil, fmt.Errorf("schema: list migrations: %w", err)
	}
	return files, nil
}

func requireUTF8(ctx context.Context, tx querier) error {
	var encoding string
	if err := tx.QueryRowContext(ctx, `SELECT pg_catalog.current_setting('server_encoding')`).Scan(&encoding); err != nil {
		return fmt.Errorf("schema: read server_encoding: %w", err)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("%w: it is %s", ErrNotUTF8, encoding)
	}
	return nil
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

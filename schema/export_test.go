package schema

import (
	"context"
	"database/sql"
	"fmt"
	"path"
)

// MigrateTo makes the tables of an earlier version of the outbox.
func (s Postgres) MigrateTo(ctx context.Context, db *sql.DB, version int) error {
	return s.migrateTo(ctx, db, s.components()[0], version)
}

// MigrateInboxTo makes the table of an earlier version of the inbox.
func (s Postgres) MigrateInboxTo(ctx context.Context, db *sql.DB, version int) error {
	return s.migrateTo(ctx, db, s.components()[1], version)
}

func (s Postgres) migrateTo(ctx context.Context, db *sql.DB, c component, version int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, migrateSettings); err != nil {
		return err
	}
	if err := s.ensureMigrationsTable(ctx, tx); err != nil {
		return err
	}
	files, err := migrationsOf(c.kind)
	if err != nil {
		return err
	}
	if version >= len(files) {
		return fmt.Errorf("version %d is not an earlier one, %s is the latest", version, path.Base(files[len(files)-1]))
	}
	for _, file := range files[:version] {
		if err := s.apply(ctx, tx, file); err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO `+s.qualified(migrationsTable)+` (table_name, kind, version) VALUES ($1, $2, $3)`,
		c.table, c.kind, version)
	if err != nil {
		return err
	}
	return tx.Commit()
}

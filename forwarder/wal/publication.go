package wal

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-outbox/outbox/schema"
)

// ensurePublication makes the publication if it is not there, and the role may.
func (s *Source) ensurePublication(ctx context.Context, conn *pgconn.PgConn) error {
	outbox := s.config.Schema.Outbox()
	row, err := query(ctx, conn, `SELECT p.pubinsert, EXISTS (
			SELECT FROM pg_publication_tables AS t JOIN pg_namespace AS n ON n.nspname = t.schemaname
			JOIN pg_class AS c ON c.relname = t.tablename AND c.relnamespace = n.oid
			WHERE t.pubname = p.pubname AND c.oid = `+text(outbox)+`::regclass
		) FROM pg_publication AS p WHERE p.pubname = `+text(s.config.Publication))
	if err != nil {
		return fmt.Errorf("wal: look for the publication: %w", schema.Explain(err))
	}
	mend := `CREATE PUBLICATION ` + quote(s.config.Publication) + ` FOR TABLE ` + outbox + ` WITH (publish = 'insert')`
	switch {
	case row == nil:
	case row[0] != "t":
		return fmt.Errorf("%w: ALTER PUBLICATION %s SET (publish = 'insert')", ErrNoPublication, quote(s.config.Publication))
	case row[1] != "t":
		return fmt.Errorf("%w: ALTER PUBLICATION %s ADD TABLE %s", ErrNoPublication, quote(s.config.Publication), outbox)
	default:
		return nil
	}
	_, err = query(ctx, conn, mend)
	switch {
	case err == nil, hasSQLState(err, duplicateObject): // another replica was faster
		return nil
	case hasSQLState(err, insufficientPrivilege):
		return fmt.Errorf("%w: as the table's owner: %s: %w", ErrNoPublication, mend, err)
	default:
		return fmt.Errorf("wal: create the publication: %w", err)
	}
}

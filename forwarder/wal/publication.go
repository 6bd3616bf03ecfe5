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
	// Row filters came with Postgres 15.
	row, err := query(ctx, conn, `SELECT p.pubinsert, t.tablename IS NOT NULL, coalesce(to_jsonb(t) ->> 'rowfilter', '')
		FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace CROSS JOIN pg_publication AS p
		LEFT JOIN pg_publication_tables AS t ON t.pubname = p.pubname AND t.schemaname = n.nspname AND t.tablename = c.relname
		WHERE c.oid = `+text(outbox)+`::regclass AND p.pubname = `+text(s.config.Publication))
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
	case row[2] != "":
		return fmt.Errorf("%w: only those with %s: ALTER PUBLICATION %s SET TABLE %s",
			ErrNoPublication, row[2], quote(s.config.Publication), outbox)
	default:
		return nil
	}
	_, err = query(ctx, conn, mend)
	switch {
	case err == nil, hasSQLState(err, duplicateObject), hasSQLState(err, uniqueViolation): // another replica was faster
		return nil
	case hasSQLState(err, insufficientPrivilege):
		return fmt.Errorf("%w: as the table's owner: %s: %w", ErrNoPublication, mend, err)
	default:
		return fmt.Errorf("wal: create the publication: %w", err)
	}
}

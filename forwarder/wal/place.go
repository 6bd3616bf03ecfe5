package wal

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-outbox/outbox/schema"
)

// checkPlace says whether both addresses lead to one database, and what the role of ours lacks there.
func (s *Source) checkPlace(ctx context.Context, conn *pgconn.PgConn, db *sql.DB) error {
	// A table has its number, and a server the time of its start, in one database only.
	place := `SELECT pg_catalog.concat_ws(' ', pg_catalog.current_database(),
		` + text(s.config.Schema.Outbox()) + `::pg_catalog.regclass::pg_catalog.oid,
		pg_catalog.to_char(pg_catalog.pg_postmaster_start_time() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US'))`
	ours, err := query(ctx, conn, place)
	if err != nil {
		return fmt.Errorf("wal: look where ReplicationDSN leads: %w", schema.Explain(err))
	}
	theirs, err := readOne(ctx, db, place)
	if err != nil {
		return fmt.Errorf("wal: look where the forwarder's database is: %w", schema.Explain(err))
	}
	if ours[0] != theirs {
		return fmt.Errorf("%w: database, number of the table and start of the server are %s, and %s", ErrOtherDatabase, ours[0], theirs)
	}
	return s.checkSlotsRight(ctx, conn)
}

// readOne keeps a statement together behind a pooler, where a driver prepares it first.
func readOne(ctx context.Context, db *sql.DB, query string) (value string, err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return "", fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	err = tx.QueryRowContext(ctx, query).Scan(&value)
	return value, err //nolint:wrapcheck // the caller does
}

func (s *Source) checkSlotsRight(ctx context.Context, conn *pgconn.PgConn) error {
	slots := s.config.Schema.Slots()
	row, err := query(ctx, conn, `SELECT current_user, bool_and(has_table_privilege(`+text(slots)+`, p))
		FROM unnest('{SELECT,INSERT,UPDATE}'::text[]) AS p`)
	if err != nil {
		return fmt.Errorf("wal: look for the grants on %s: %w", slots, schema.Explain(err))
	}
	if row[1] == "t" {
		return s.checkSignalRight(ctx, conn)
	}
	return fmt.Errorf("%w: GRANT SELECT, INSERT, UPDATE ON %s TO %s", ErrNoSlotsRight, slots, quote(row[0]))
}

// checkSignalRight asks whether the guard could end the reader that has the slot now (Postgres manual, "Server
// Signaling Functions").
func (s *Source) checkSignalRight(ctx context.Context, conn *pgconn.PgConn) error {
	row, err := query(ctx, conn, `SELECT a.usename, current_user
		FROM pg_replication_slots AS s JOIN pg_stat_activity AS a ON a.pid = s.active_pid
		JOIN pg_roles AS r ON r.rolname = a.usename
		WHERE s.slot_name = `+text(s.config.Slot)+` AND NOT pg_has_role(a.usename, 'MEMBER')
			AND (r.rolsuper OR NOT pg_has_role('pg_signal_backend', 'MEMBER'))`)
	if err != nil {
		return fmt.Errorf("wal: look who reads the slot: %w", err)
	}
	if row != nil {
		return fmt.Errorf("%w: it is read by %s, this is %s", ErrNoSignalRight, quote(row[0]), quote(row[1]))
	}
	return nil
}

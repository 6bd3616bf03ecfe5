package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-outbox/outbox/schema"
)

// deleteBatchRows keeps each transaction of DeleteOlderThan short: it holds back
// neither vacuum nor a waiting handler for more than a moment.
const deleteBatchRows = 1000

// asText is a moment in a form that Postgres and drivers exchange as it is: some ways
// of pgx read times only if the session's datestyle is ISO.
func asText(moment string) string {
	return `pg_catalog.to_char(pg_catalog.timezone('UTC', ` + moment + `), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
}

var clockStatement = `SELECT ` + asText(`pg_catalog.now() - pg_catalog.make_interval(secs => $1::double precision)`)

// deleteBatchStatement deletes the oldest keys received in [$1, $2) and returns how
// many there were, and when the youngest of them was received.
func deleteBatchStatement(table string) string {
	return fmt.Sprintf(`WITH deleted AS (
			DELETE FROM %[1]s WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM %[1]s
				WHERE received_at >= $1::timestamptz AND received_at < $2::timestamptz
				ORDER BY received_at
				LIMIT %[2]d
				FOR UPDATE SKIP LOCKED))
			RETURNING received_at)
		SELECT pg_catalog.count(*), %[3]s FROM deleted`, table, deleteBatchRows, asText(`pg_catalog.max(received_at)`))
}

// DeleteOlderThan deletes the keys of all consumers that were recorded more than age
// ago by the database's clock, and returns how many. An event that is delivered again
// after its key is deleted is handled again: choose an age well beyond the longest
// time after which a message can come back (the broker's retention, a replay of dead
// letters), usually days. Call it now and then; several calls at once do no harm.
//
// It works in transactions of its own, at most 1000 keys each, and passes over keys
// that are locked. When ctx ends it stops after the batches that are committed, and
// returns their number with the error. An age of zero or less is ErrInvalidAge.
func (s *Store) DeleteOlderThan(ctx context.Context, db *sql.DB, age time.Duration) (deleted int64, err error) {
	if age <= 0 {
		return 0, fmt.Errorf("%w: it is %s", ErrInvalidAge, age)
	}
	// Taken once, so that the loop ends however fast new keys grow old.
	var until string
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, clockStatement, age.Seconds()).Scan(&until)
	})
	if err != nil {
		return 0, fmt.Errorf("inbox: retention: read the database's clock: %w", err)
	}
	// Each batch begins where the last one ended: the index entries of what is deleted
	// stay until a vacuum, and would be read again by every batch.
	from := "-infinity"
	for {
		batch, err := s.deleteBatch(ctx, db, from, until)
		if err != nil {
			return deleted, fmt.Errorf("inbox: retention in %s: %w", s.config.Schema.Inbox(), err)
		}
		deleted += batch.rows
		if batch.rows < deleteBatchRows {
			return deleted, nil
		}
		from = batch.youngest.V
	}
}

type deletedBatch struct {
	rows     int64
	youngest sql.Null[string]
}

func (s *Store) deleteBatch(ctx context.Context, db *sql.DB, from, until string) (batch deletedBatch, err error) {
	err = inTx(ctx, db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.statements.deleteBatch, from, until).Scan(&batch.rows, &batch.youngest)
	})
	return batch, err
}

// inTx runs even a single statement in a transaction: outside of one, lib/pq sends a
// statement and its parameters separately, and behind PgBouncer they may meet with
// another client's. It says READ COMMITTED: above it, a key that another call deletes at
// the same time would be a serialization failure.
func inTx(ctx context.Context, db *sql.DB, run func(tx *sql.Tx) error) (err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreDone(tx.Rollback()))
		}
	}()
	if err := run(tx); err != nil {
		return schema.Explain(err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

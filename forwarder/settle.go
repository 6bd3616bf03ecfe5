package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
)

var errRowsGone = errors.New("forwarder: claimed rows are gone although they were locked")

// settler writes into the database what became of a batch.
type settler struct {
	settleQuery string
	delayQuery  string
	initial     time.Duration
	longest     time.Duration
}

func newSettler(cfg Config) settler {
	outbox := cfg.Schema.Outbox()
	s := settler{
		settleQuery: `DELETE FROM ` + outbox + ` WHERE seq = ANY ($1::bigint[])`,
		initial:     cfg.RetryInitial,
		longest:     cfg.RetryMax,
	}
	if cfg.Settlement == MarkPublished {
		s.settleQuery = `UPDATE ` + outbox + `
			SET published_at = clock_timestamp(), next_attempt_at = NULL, last_error = NULL
			WHERE seq = ANY ($1::bigint[]) AND published_at IS NULL`
	}
	// The database's clock and the row's own count: replicas whose clocks differ agree
	// on when a row is due. ±20 % of jitter. Qualified and cast, since a function or an
	// operator anywhere in the search_path may fit better than Postgres' own.
	s.delayQuery = `UPDATE ` + outbox + ` AS o
		SET attempts = o.attempts + f.spent,
			last_error = left(f.error, 2000),
			next_attempt_at = clock_timestamp() + (0.8::float8 + 0.4::float8 * random()) * interval '1 millisecond'
				* least($5::bigint::float8, $4::bigint::float8 * pg_catalog.power(2::float8, least(o.attempts, 30)::float8))
		FROM ROWS FROM (
			pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::integer[]), pg_catalog.unnest($3::text[])
		) AS f (seq, spent, error)
		WHERE o.seq = f.seq`
	return s
}

// settle removes or marks rows whose messages the broker confirmed.
func (s settler) settle(ctx context.Context, tx *sql.Tx, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	result, err := tx.ExecContext(ctx, s.settleQuery, pq.Int64Array(seqs))
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return requireAffected(result, len(seqs))
}

// failure is a row whose message was not confirmed and must wait.
type failure struct {
	seq int64
	// spent is 1 where the message itself was refused, 0 where the broker may be at
	// fault.
	spent int64
	err   error
}

// delay leaves the rows in the outbox and holds them back until their next attempt.
func (s settler) delay(ctx context.Context, tx *sql.Tx, failures []failure) error {
	if len(failures) == 0 {
		return nil
	}
	seqs := make([]int64, len(failures))
	spent := make([]int64, len(failures))
	texts := make([]string, len(failures))
	for i, f := range failures {
		seqs[i], spent[i], texts[i] = f.seq, f.spent, storable(f.err.Error())
	}
	result, err := tx.ExecContext(ctx, s.delayQuery, pq.Int64Array(seqs), pq.Int64Array(spent),
		pq.StringArray(texts), s.initial.Milliseconds(), s.longest.Milliseconds())
	if err != nil {
		return fmt.Errorf("delay: %w", err)
	}
	return requireAffected(result, len(failures))
}

func requireAffected(result sql.Result, want int) error {
	got, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("rows affected: %w", err)
	}
	if got != int64(want) {
		return fmt.Errorf("%w: %d of %d are left", errRowsGone, got, want)
	}
	return nil
}

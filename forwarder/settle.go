package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lib/pq"
)

var errRowsGone = errors.New("forwarder: claimed rows are gone although they were locked")

// settler writes into the database what became of a batch.
type settler struct {
	settleQuery  string
	rangeQuery   string
	delayQuery   string
	buryQuery    string
	promoteQuery string
	initial      time.Duration
	longest      time.Duration
	blocks       bool
}

func newSettler(cfg Config) settler {
	const (
		these   = ` WHERE seq = ANY ($1::bigint[])`
		byRange = ` WHERE seq >= $1::bigint AND seq <= $2::bigint`
	)
	outbox := cfg.Schema.Outbox()
	settle, still := `DELETE FROM `+outbox, ``
	if cfg.Settlement == MarkPublished {
		settle = `UPDATE ` + outbox + ` SET published_at = clock_timestamp(), next_attempt_at = NULL, last_error = NULL`
		still = ` AND published_at IS NULL`
	}
	s := settler{
		settleQuery:  settle + these + still,
		rangeQuery:   settle + byRange + still,
		buryQuery:    buryQuery(cfg.Schema),
		promoteQuery: promoteQuery(cfg.Schema),
		initial:      cfg.RetryInitial,
		longest:      cfg.RetryMax,
		blocks:       cfg.OnDeadLetter == Block,
	}
	// The database's clock and the row's own count: replicas whose clocks differ agree
	// on when a row is due. Where no attempt is spent, a quarter of its age stands for the
	// count. ±20 % of jitter. Qualified and cast, since a function or an operator anywhere in
	// the search_path may fit better than Postgres' own.
	s.delayQuery = `UPDATE ` + outbox + ` AS o
		SET attempts = least(o.attempts, 2147483646) + f.spent,
			last_error = left(f.error, 2000),
			next_attempt_at = clock_timestamp() + (0.8::float8 + 0.4::float8 * random()) * interval '1 millisecond'
				* least($5::bigint::float8, greatest(
					$4::bigint::float8 * pg_catalog.power(2::float8, least(o.attempts, 30)::float8),
					CASE WHEN f.spent = 0 AND isfinite(o.created_at)
						THEN (250 * extract(epoch FROM clock_timestamp() - o.created_at))::float8 END))
		FROM ROWS FROM (
			pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::integer[]), pg_catalog.unnest($3::text[])
		) AS f (seq, spent, error)
		WHERE o.seq = f.seq`
	return s
}

// write settles, buries and delays what a verdict says, and lets what is behind go on.
func (s settler) write(ctx context.Context, tx *sql.Tx, v *verdict) error {
	if err := s.settle(ctx, tx, v.confirmed); err != nil {
		return err
	}
	if err := s.buryOrDelay(ctx, tx, v); err != nil {
		return err
	}
	if err := s.delay(ctx, tx, v.delayed); err != nil {
		return err
	}
	return s.promote(ctx, tx, v.freed)
}

// settle removes or marks rows whose messages the broker confirmed.
func (s settler) settle(ctx context.Context, tx *sql.Tx, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	query, args := s.settleQuery, []any{pq.Int64Array(seqs)}
	if first, last := slices.Min(seqs), slices.Max(seqs); last-first == int64(len(seqs)-1) { // read in one go
		query, args = s.rangeQuery, []any{first, last}
	}
	result, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return requireAffected(result, len(seqs))
}

// delay leaves the rows in the outbox and holds them back until their next attempt.
func (s settler) delay(ctx context.Context, tx *sql.Tx, failures []failure) error {
	if len(failures) == 0 {
		return nil
	}
	f := columnsOf(failures)
	result, err := tx.ExecContext(ctx, s.delayQuery, f.seqs, f.spent, f.texts, s.initial.Milliseconds(), s.longest.Milliseconds())
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

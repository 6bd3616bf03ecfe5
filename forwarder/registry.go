package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// registry is the table in which forwarders tell each other, and operators, what is away. So
// several replicas try it as often as one, and how long it has been away survives them.
type registry struct {
	db      *sql.DB
	timeout time.Duration

	turnQuery   string
	othersQuery string
	removeQuery string
}

// entry names a row of it.
type entry struct{ kind, name string }

const (
	kindBroker      = "broker"
	kindDestination = "destination"
)

func newRegistry(db *sql.DB, cfg Config) *registry {
	table := cfg.Schema.Absences()
	return &registry{
		db:      db,
		timeout: cfg.DatabaseTimeout,
		// Its result is how long it has been away; none if others have tried it meanwhile.
		turnQuery: `INSERT INTO ` + table + ` AS a (kind, name, error, next_try_at)
			VALUES ($1::text, $2::text, left($3::text, 2000), clock_timestamp() + $4::bigint * interval '1 millisecond')
			ON CONFLICT (kind, name) DO UPDATE
			SET error = EXCLUDED.error, next_try_at = EXCLUDED.next_try_at, tried_at = clock_timestamp(),
				since = CASE WHEN ` + isStale(cfg, `a`) + ` THEN clock_timestamp() ELSE a.since END
			WHERE a.next_try_at <= clock_timestamp()
			RETURNING (extract(epoch FROM clock_timestamp() - a.since) * 1000)::bigint`,
		othersQuery: `SELECT greatest(0, (extract(epoch FROM next_try_at - clock_timestamp()) * 1000)::bigint)
			FROM ` + table + ` WHERE kind = $1::text AND name = $2::text`,
		removeQuery: `DELETE FROM ` + table + ` WHERE kind = $1::text AND name = $2::text`,
	}
}

// turn says whose turn it is to try what is away.
type turn struct {
	ours bool
	// away is how long it has been away, if it is ours.
	away time.Duration
	// wait is how long others have until it is to be tried again, if it is theirs.
	wait time.Duration
}

// take asks for the turn to try e. wait is how long nobody is to try it after that.
func (r *registry) take(ctx context.Context, e entry, reason error, wait time.Duration) (turn, error) {
	whose := make(chan turn, 1)
	err := r.inTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		t, err := r.takeIn(ctx, tx, e, reason, wait)
		whose <- t
		return err
	})
	if err != nil {
		return turn{}, err
	}
	return <-whose, nil
}

func (r *registry) takeIn(ctx context.Context, tx *sql.Tx, e entry, reason error, wait time.Duration) (turn, error) {
	var milliseconds int64
	err := tx.QueryRowContext(ctx, r.turnQuery, e.kind, e.name, storable(reason.Error()), wait.Milliseconds()).Scan(&milliseconds)
	if err == nil {
		return turn{ours: true, away: time.Duration(milliseconds) * time.Millisecond}, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return turn{}, fmt.Errorf("note that the %s %q is away: %w", e.kind, e.name, err)
	}
	switch err := tx.QueryRowContext(ctx, r.othersQuery, e.kind, e.name).Scan(&milliseconds); {
	case errors.Is(err, sql.ErrNoRows): // they have just found it to be back
		return turn{}, nil
	case err != nil:
		return turn{}, fmt.Errorf("read how long the %s %q is away: %w", e.kind, e.name, err)
	default:
		return turn{wait: time.Duration(milliseconds) * time.Millisecond}, nil
	}
}

// remove says that something is back.
func (r *registry) remove(ctx context.Context, e entry) error {
	return r.inTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, r.removeQuery, e.kind, e.name); err != nil {
			return fmt.Errorf("note that the %s %q is back: %w", e.kind, e.name, err)
		}
		return nil
	})
}

// inTx keeps a statement and its parameters together behind a pooler.
func (r *registry) inTx(ctx context.Context, do func(ctx context.Context, tx *sql.Tx) error) error {
	_, err := answered(2*r.timeout, func() (struct{}, error) { return struct{}{}, r.inTxAtOnce(ctx, do) })
	return err
}

func (r *registry) inTxAtOnce(ctx context.Context, do func(ctx context.Context, tx *sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	tx, err := r.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, `SET LOCAL search_path = pg_catalog`); err != nil {
		return fmt.Errorf("set search_path: %w", err)
	}
	if err := do(ctx, tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// isStale is true for an absence that nobody has tried for much longer than forwarders wait in
// between: those that knew of it are gone. It may have ended meanwhile, and what begins now is
// another one.
func isStale(cfg Config, absence string) string {
	after := time.Minute + 4*(cfg.RetryMax+cfg.PublishTimeout)
	return fmt.Sprintf(`%[1]s.tried_at < clock_timestamp() - %[2]d * interval '1 second'
		AND %[1]s.next_try_at < clock_timestamp() - %[2]d * interval '1 second'`, absence, int(after.Seconds()))
}

func staleQuery(cfg Config) string {
	return `DELETE FROM ` + cfg.Schema.Absences() + ` AS a WHERE ` + isStale(cfg, `a`)
}

// dropStale keeps the table as small as what is away.
func (p *patrol) dropStale(ctx context.Context) error {
	return p.registry.inTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, p.staleQuery); err != nil {
			return fmt.Errorf("forget what is not tried any more: %w", err)
		}
		return nil
	})
}

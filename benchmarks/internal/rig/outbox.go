package rig

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/lib/pq" // also the driver "postgres"

	"github.com/watermill-outbox/outbox/benchmarks/internal/compare"
	"github.com/watermill-outbox/outbox/schema"
)

// Outbox is an outbox in a Postgres schema of its own.
type Outbox struct {
	DB *sql.DB
	// DSN has the schema as search_path.
	DSN    string
	Schema schema.Postgres
}

// NewOutbox makes one. Close drops it.
func (r Rig) NewOutbox(ctx context.Context) (*Outbox, error) { return newOutbox(ctx, r.DSN) }

func newOutbox(ctx context.Context, dsn string) (*Outbox, error) {
	o := &Outbox{Schema: schema.Postgres{Schema: NewName()}}
	parsed, err := url.Parse(dsn)
	if err != nil {
		return nil, errors.New("POSTGRES_DSN must be a URL") // the error would show the password
	}
	query := parsed.Query()
	query.Set("search_path", o.Schema.Schema)
	query.Set("application_name", o.Schema.Schema)
	parsed.RawQuery = query.Encode()
	o.DSN = parsed.String()
	if o.DB, err = Open(o.DSN); err != nil {
		return nil, err
	}
	err = o.Exec(ctx, `CREATE SCHEMA `+o.Schema.Schema)
	if err == nil {
		err = o.Schema.Migrate(ctx, o.DB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make an outbox: %w", err), o.Close(ctx))
	}
	return o, nil
}

// Open returns a pool that keeps its connections.
func Open(dsn string) (*sql.DB, error) {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(idleConnections)
	return db, nil
}

// idleConnections are more than any side uses at once.
const idleConnections = 64

// Close drops the outbox, whatever has become of the run.
func (o *Outbox) Close(ctx context.Context) error {
	ctx, cancel := atTheEnd(ctx)
	defer cancel()
	return errors.Join(o.Exec(ctx, `DROP SCHEMA IF EXISTS `+o.Schema.Schema+` CASCADE`), o.DB.Close())
}

// Exec runs a statement.
func (o *Outbox) Exec(ctx context.Context, statement string, args ...any) error {
	if _, err := o.DB.ExecContext(ctx, statement, args...); err != nil {
		return fmt.Errorf("%.60s: %w", statement, err)
	}
	return nil
}

// Number returns what a query for one number gives.
func (o *Outbox) Number(ctx context.Context, query string, args ...any) (number float64, err error) {
	if err := o.DB.QueryRowContext(ctx, query, args...).Scan(&number); err != nil {
		return 0, fmt.Errorf("%.60s: %w", query, err)
	}
	return number, nil
}

// Load is a number of rows to fill the outbox with.
type Load struct {
	Rows         int
	Destination  string
	PayloadBytes int
	// Keys is among how many partition keys the rows are spread, in turn. 0: each row is
	// its own unit.
	Keys int
	// HotEvery gives each row whose number it divides the key HotKey. 0: none.
	HotEvery int
	// Prefix is that of the ids. Default: a new one.
	Prefix string
}

// HotKey is that of many rows among others.
const HotKey = "hot"

// Fill writes the rows in one transaction, and returns the tally that waits for them.
func (o *Outbox) Fill(ctx context.Context, load Load) (*compare.Tally, error) {
	prefix := load.Prefix
	if prefix == "" {
		prefix = NewPrefix()
	}
	payloads := NewPayloads(load.PayloadBytes)
	err := o.Exec(ctx, `INSERT INTO `+o.Schema.Outbox()+` (id, destination, partition_key, payload)
		SELECT $1::text || lpad(n::text, 12, '0'), $2::text,
			CASE WHEN n % nullif($6::bigint, 0) = 0 THEN '`+HotKey+`' WHEN $3::bigint > 0 THEN 'key-' || n % nullif($3::bigint, 0) END,
			($4::text[])[1 + n % $7::bigint]
		FROM generate_series(1, $5::bigint) AS n`,
		prefix, load.Destination, load.Keys, pq.StringArray(payloads), load.Rows, load.HotEvery, len(payloads))
	if err != nil {
		return nil, err
	}
	return compare.NewTally(prefix, load.Rows), nil
}

// Settle is what a long time at rest does: every side begins with the planner's
// statistics, and without the marks of what was there before.
func (o *Outbox) Settle(ctx context.Context) error {
	return o.Exec(ctx, `VACUUM ANALYZE `+o.Schema.Outbox())
}

// Clear removes all rows, and requires that there are so many.
func (o *Outbox) Clear(ctx context.Context, want int) error {
	rows, err := o.Number(ctx, `SELECT count(*) FROM `+o.Schema.Outbox())
	if err != nil {
		return err
	}
	if int(rows) != want {
		return fmt.Errorf("%.0f rows are in the outbox after the round, not %d", rows, want)
	}
	return o.Exec(ctx, `TRUNCATE `+o.Schema.Outbox())
}

// AwaitEmpty returns once a running forwarder has emptied the outbox.
func (o *Outbox) AwaitEmpty(ctx context.Context) error { return o.AwaitRows(ctx, 0) }

// AwaitRows returns once a running forwarder has left so many rows.
func (o *Outbox) AwaitRows(ctx context.Context, want int) error {
	return await(ctx, func() (bool, error) {
		rows, err := o.Number(ctx, `SELECT count(*) FROM `+o.Schema.Outbox())
		return int(rows) == want, err
	})
}

// await asks until it is so.
func await(ctx context.Context, isSo func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if ok, err := isSo(); ok || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

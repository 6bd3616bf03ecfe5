package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// tables are those of the business on both sides: the aggregates and events of the
// writers, the effects and balances of the consumer.
type tables struct {
	outbox      string
	deadLetters string
	aggregates  string
	events      string
	effects     string
	balances    string
	trigger     string
}

func newTables(s schema.Postgres) tables {
	name := s.Schema
	if name == "" {
		name = "public"
	}
	in := pq.QuoteIdentifier(name) + "."
	return tables{
		outbox:      s.Outbox(),
		deadLetters: s.DeadLetters(),
		aggregates:  in + "ledger_aggregates",
		events:      in + "ledger_events",
		effects:     in + "ledger_effects",
		balances:    in + "ledger_balances",
		trigger:     in + "ledger_sleep",
	}
}

func (t tables) create(ctx context.Context, db *sql.DB, keys []string, insertDelay time.Duration) error {
	statements := []string{
		`CREATE TABLE ` + t.aggregates + ` (key text PRIMARY KEY, n bigint NOT NULL)`,
		`CREATE TABLE ` + t.events + ` (event_id text PRIMARY KEY, key text NOT NULL, n bigint NOT NULL)`,
		// No unique key: a second effect must show, not fail.
		`CREATE TABLE ` + t.effects + ` (event_id text NOT NULL, key text NOT NULL, n bigint NOT NULL)`,
		`CREATE TABLE ` + t.balances + ` (key text PRIMARY KEY, balance bigint NOT NULL)`,
	}
	if insertDelay > 0 {
		// seq is drawn by then: defaults are evaluated before BEFORE triggers run.
		statements = append(statements,
			fmt.Sprintf(`CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS
				$$BEGIN PERFORM pg_catalog.pg_sleep(pg_catalog.random() * %f); RETURN NEW; END$$`, t.trigger, insertDelay.Seconds()),
			`CREATE TRIGGER ledger_sleep BEFORE INSERT ON `+t.outbox+` FOR EACH ROW EXECUTE FUNCTION `+t.trigger+`()`)
	}
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("ledger: create tables: %w", err)
		}
	}
	_, err := db.ExecContext(ctx, `INSERT INTO `+t.aggregates+` (key, n)
		SELECT key, 0 FROM unnest($1::text[]) AS key`, pq.StringArray(keys))
	if err != nil {
		return fmt.Errorf("ledger: create aggregates: %w", err)
	}
	return nil
}

// waiting is what the outbox holds for its forwarders.
func (t tables) waiting(ctx context.Context, db *sql.DB) ([]string, error) {
	return texts(ctx, db, `SELECT id FROM `+t.outbox+` WHERE published_at IS NULL`)
}

// describeWaiting is for people: the head of what is left.
func (t tables) describeWaiting(ctx context.Context, db *sql.DB) ([]string, error) {
	return texts(ctx, db, `SELECT pg_catalog.format('seq %s id %s destination %s key %s attempts %s next %s error %s',
			seq, id, destination, partition_key, attempts, next_attempt_at, last_error)
		FROM `+t.outbox+` WHERE published_at IS NULL ORDER BY seq LIMIT 5`)
}

func texts(ctx context.Context, db *sql.DB, query string) ([]string, error) {
	var values []string
	err := scan(ctx, db, query, func(rows *sql.Rows) error {
		var value string
		err := rows.Scan(&value)
		values = append(values, value)
		return err
	})
	return values, err
}

func counts(ctx context.Context, db *sql.DB, query string) (map[string]int, error) {
	values := map[string]int{}
	err := scan(ctx, db, query, func(rows *sql.Rows) error {
		var (
			name  string
			count int
		)
		err := rows.Scan(&name, &count)
		values[name] = count
		return err
	})
	return values, err
}

func scan(ctx context.Context, db *sql.DB, query string, each func(*sql.Rows) error) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("ledger: %s: %w", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return fmt.Errorf("ledger: %s: %w", query, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("ledger: %s: %w", query, err)
	}
	return nil
}

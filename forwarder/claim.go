package forwarder

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// row is a claimed row: locked until the transaction of its claim ends.
type row struct {
	seq      int64
	outgoing Outgoing
}

// claimer takes rows out of the reach of other workers and replicas.
type claimer struct {
	ordering   Ordering
	batchSize  int
	batchBytes int
	workers    int
	lockBase   int64

	lanesQuery string
	rowsQuery  string
}

func newClaimer(cfg Config) claimer {
	c := claimer{
		ordering:   cfg.Ordering,
		batchSize:  cfg.BatchSize,
		batchBytes: cfg.BatchBytes,
		workers:    cfg.Workers,
		lockBase:   cfg.Schema.LockBase(),
	}
	c.lanesQuery = lanesQuery(cfg.Schema)
	if cfg.Ordering == PerKey {
		c.rowsQuery = rowsQuery(cfg.Schema, perKeyFilter(cfg.Schema), `FOR UPDATE`)
	} else {
		c.rowsQuery = rowsQuery(cfg.Schema, noneFilter, `FOR UPDATE SKIP LOCKED`)
	}
	return c
}

// lanesQuery locks free lanes until the end of the transaction, starting at a random
// one: $1 lock base, $2 where to start, $3 among how many workers to share.
func lanesQuery(s schema.Postgres) string {
	return `SELECT c.lane, c.lanes FROM (
			SELECT s.lanes, (g.n + $2::integer) & (s.lanes - 1) AS lane
			FROM ` + s.Settings() + ` AS s, generate_series(0, s.lanes - 1) AS g (n)
			OFFSET 0
		) AS c
		WHERE pg_try_advisory_xact_lock($1::bigint + c.lane)
		LIMIT (SELECT (lanes + $3::integer - 1) / $3::integer FROM ` + s.Settings() + `)`
}

// perKeyFilter holds back the whole unit of a row that is not due. Like the lanes it
// goes by the unit's hash: two units that collide wait for each other, which is rare
// and harmless.
func perKeyFilter(s schema.Postgres) string {
	return `(unit_hash & ($4::integer - 1)) = ANY ($5::integer[])
		AND unit_hash NOT IN (SELECT b.unit_hash FROM ` + s.Outbox() + ` AS b WHERE b.next_attempt_at > clock_timestamp())`
}

const noneFilter = `(next_attempt_at IS NULL OR next_attempt_at <= clock_timestamp())`

// rowsQuery locks the rows at the head and returns as many as fit into the bytes
// allowed: $1 rows, $2 bytes, $3 destinations to leave out. The sizes are known
// before any payload is read.
func rowsQuery(s schema.Postgres, filter, lock string) string {
	return `WITH head AS (
			SELECT seq, coalesce(octet_length(payload), octet_length(payload_bytes)) AS size
			FROM ` + s.Outbox() + `
			WHERE published_at IS NULL AND destination <> ALL ($3::text[]) AND ` + filter + `
			ORDER BY seq
			LIMIT $1::integer
			` + lock + `
		), sized AS (
			SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM head
		)
		SELECT o.seq, o.id, o.destination, coalesce(nullif(o.partition_key, ''), o.id), o.payload, o.payload_bytes, o.metadata::text
		FROM sized JOIN ` + s.Outbox() + ` AS o USING (seq)
		WHERE sized.before = 0 OR sized.before < $2::bigint
		ORDER BY seq`
}

// claim takes the next rows, in the order of seq. An empty result says that there is
// nothing to do, or that others hold it.
//
// Lanes and rows are two statements, and the transaction is READ COMMITTED: the
// second statement gets a snapshot taken after the lanes were won, in which whatever
// their last holder settled is gone. In one statement the snapshot would be older
// than the lock, and settled rows would be sent again.
func (c claimer) claim(ctx context.Context, tx *sql.Tx, away []string) ([]row, error) {
	args := []any{c.batchSize, c.batchBytes, append(pq.StringArray{}, away...)} // never NULL
	if c.ordering == PerKey {
		lanes, total, err := c.claimLanes(ctx, tx)
		if err != nil || len(lanes) == 0 {
			return nil, err
		}
		args = append(args, total, pq.Int64Array(lanes))
	}
	return c.claimRows(ctx, tx, args)
}

func (c claimer) claimLanes(ctx context.Context, tx *sql.Tx) (lanes []int64, total int, err error) {
	start := rand.IntN(maxLanes)
	rows, err := tx.QueryContext(ctx, c.lanesQuery, c.lockBase, start, c.workers)
	if err != nil {
		return nil, 0, fmt.Errorf("claim lanes: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	for rows.Next() {
		var lane int64
		if err := rows.Scan(&lane, &total); err != nil {
			return nil, 0, fmt.Errorf("claim lanes: %w", err)
		}
		lanes = append(lanes, lane)
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("claim lanes: %w", err)
	}
	return lanes, total, nil
}

// maxLanes is the largest number of lanes that the settings table allows.
const maxLanes = 4096

func (c claimer) claimRows(ctx context.Context, tx *sql.Tx, args []any) ([]row, error) {
	rows, err := tx.QueryContext(ctx, c.rowsQuery, args...)
	if err != nil {
		return nil, fmt.Errorf("claim rows: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	var claimed []row
	for rows.Next() {
		row, err := scanRow(rows)
		if err != nil {
			return nil, fmt.Errorf("claim rows: %w", err)
		}
		claimed = append(claimed, row)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("claim rows: %w", err)
	}
	return claimed, nil
}

func scanRow(rows *sql.Rows) (row, error) {
	var (
		r        row
		id       string
		text     sql.Null[string]
		payload  []byte
		metadata string
	)
	err := rows.Scan(&r.seq, &id, &r.outgoing.Destination, &r.outgoing.PartitionKey, &text, &payload, &metadata)
	if err != nil {
		return row{}, err //nolint:wrapcheck // claimRows wraps it
	}
	if text.Valid {
		payload = []byte(text.V)
	}
	r.outgoing.Message = message.NewMessage(id, payload)
	r.outgoing.Message.Metadata, err = decodeMetadata(metadata)
	if err != nil {
		return row{}, fmt.Errorf("metadata of seq %d: %w", r.seq, err)
	}
	return r, nil
}

// decodeMetadata reads the jsonb column. A producer that writes SQL may put anything
// into the object: a value that is no string arrives as its JSON text.
func decodeMetadata(encoded string) (message.Metadata, error) {
	if encoded == "{}" {
		return message.Metadata{}, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(encoded), &values); err != nil {
		return nil, err //nolint:wrapcheck // scanRow wraps it
	}
	metadata := make(message.Metadata, len(values))
	for name, value := range values {
		var text string
		if err := json.Unmarshal(value, &text); err != nil || string(value) == "null" {
			text = string(value)
		}
		metadata[name] = text
	}
	return metadata, nil
}

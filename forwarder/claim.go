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
	// unreadable says why no message can be made of the row.
	unreadable error
}

// claimer takes rows out of the reach of other workers and replicas.
type claimer struct {
	ordering   Ordering
	batchSize  int
	batchBytes int
	workers    int
	lockBase   int64
	marks      *marks
	table      string

	lanesQuery string
	totalQuery string
	rowsQuery  string
	// passingQuery is rowsQuery for when others hold locks on rows.
	passingQuery string
}

func newClaimer(cfg Config, marks *marks) claimer {
	c := claimer{
		ordering:   cfg.Ordering,
		batchSize:  cfg.BatchSize,
		batchBytes: cfg.BatchBytes,
		workers:    cfg.Workers,
		lockBase:   cfg.Schema.LockBase(),
		marks:      marks,
		table:      cfg.Schema.Outbox(),
	}
	c.lanesQuery = lanesQuery(cfg.Schema)
	c.totalQuery = `SELECT lanes FROM ` + cfg.Schema.Settings()
	if cfg.Ordering == PerKey {
		filter := perKeyFilter(cfg.Schema)
		c.rowsQuery = rowsQuery(cfg.Schema, filter, `FOR UPDATE`, ``)
		c.passingQuery = rowsQuery(cfg.Schema, filter, `FOR UPDATE SKIP LOCKED`, notBehindSkipped(cfg.Schema, filter))
	} else {
		c.rowsQuery = rowsQuery(cfg.Schema, noneFilter, `FOR UPDATE SKIP LOCKED`, ``)
		c.passingQuery = c.rowsQuery
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
// and harmless. statement_timestamp, not clock_timestamp: it is one moment for all
// rows, and the planner can use the index with it.
func perKeyFilter(s schema.Postgres) string {
	return `(unit_hash & ($6::integer - 1)) = ANY ($7::integer[])
		AND unit_hash NOT IN (SELECT b.unit_hash FROM ` + s.Outbox() + ` AS b
			WHERE b.next_attempt_at > statement_timestamp() AND b.destination <> ALL ($3::text[]))`
}

// onlyLane is the lane that everything is in where there is no order.
const onlyLane = 0

// noneFilter takes everything for one lane.
const noneFilter = `(unit_hash & ($6::integer - 1)) = ANY ($7::integer[])
		AND ` + due

// due is true for a row that may be tried now.
const due = `(next_attempt_at IS NULL OR next_attempt_at <= statement_timestamp())`

// notBehindSkipped leaves out the units of rows that others have locked.
func notBehindSkipped(s schema.Postgres, filter string) string {
	return `WHERE unit_hash NOT IN (
		SELECT unit_hash FROM ` + s.Outbox() + `
		WHERE published_at IS NULL AND seq > $4::bigint AND destination <> ALL ($3::text[]) AND ` + filter + `
			AND seq <= (SELECT max(seq) FROM head) AND seq NOT IN (SELECT seq FROM head))`
}

// rowColumns are what scanRow reads.
const rowColumns = `seq, id, destination, coalesce(nullif(partition_key, ''), id), payload, payload_bytes, metadata::text`

// rowsQuery locks the rows at the head and returns as many as fit into the bytes
// allowed: $1 rows, $2 bytes, $3 destinations to leave out, $4 the seq to start behind,
// $5 whether to look for the newest seq, $6 how many lanes there are, $7 those to take,
// $8 the table's name.
// The sizes are known before any payload is read from where Postgres stores it. The
// columns come from the locked version of a row, which is newer than the statement's
// snapshot if the lock was waited for.
//
// Beside them it returns, in one row at least, what the marks need to know.
func rowsQuery(s schema.Postgres, filter, lock, andThen string) string {
	const columns = `seq, id, destination, partition_key, payload, payload_bytes, metadata`
	return `WITH head AS (
			SELECT ` + columns + `, unit_hash
			FROM ` + s.Outbox() + `
			WHERE published_at IS NULL AND seq > $4::bigint AND destination <> ALL ($3::text[]) AND ` + filter + `
			ORDER BY seq
			LIMIT $1::integer
			` + lock + `
		), sized AS (
			SELECT ` + columns + `, sum(size) OVER (ORDER BY seq) AS total, row_number() OVER (ORDER BY seq) AS place
			FROM (
				SELECT ` + columns + `, coalesce(octet_length(payload), octet_length(payload_bytes))
					+ octet_length(metadata::text) + coalesce(octet_length(partition_key), 0) AS size
				FROM head ` + andThen + `
			) AS measured
		)
		SELECT seen.history, seen.newest, CASE WHEN coalesce(place, 1) = 1 THEN seen.frozen END, ` + rowColumns + `
		FROM (
			SELECT extract(epoch FROM pg_postmaster_start_time())::text || '/' || pg_relation_filenode($8::text::regclass) AS history,
				CASE WHEN $5::boolean THEN (SELECT max(n.seq) FROM ` + s.Outbox() + ` AS n WHERE n.seq > $4::bigint) END AS newest,
				(SELECT array_agg(DISTINCT b.unit_hash & ($6::integer - 1)) FROM ` + s.Outbox() + ` AS b
					WHERE b.next_attempt_at > statement_timestamp() AND b.destination <> ALL ($3::text[]))::text AS frozen
		) AS seen
		LEFT JOIN sized ON place = 1 OR total <= $2::bigint
		ORDER BY seq`
}

// claim takes the next rows, in the order of seq. An empty result says that there is
// nothing to do, or that others hold it.
//
// Lanes and rows are two statements, and the transaction is READ COMMITTED: the
// second statement gets a snapshot taken after the lanes were won, in which whatever
// their last holder settled is gone. In one statement the snapshot would be older
// than the lock, and settled rows would be sent again.
//
// A row at a unit's head that somebody else has locked is waited for, up to
// lock_timeout, so that nothing overtakes it. With passing, it is not waited for: its
// unit is left out.
func (c claimer) claim(ctx context.Context, tx *sql.Tx, passing bool) ([]row, error) {
	lanes, total := []int64{onlyLane}, 1
	if c.ordering == PerKey {
		var err error
		lanes, total, err = c.claimLanes(ctx, tx)
		if err != nil || len(lanes) == 0 {
			return nil, err
		}
	}
	if err := c.marks.lookAhead(ctx, tx, c.table); err != nil {
		return nil, fmt.Errorf("look for writers: %w", err)
	}
	query := c.rowsQuery
	if passing {
		query = c.passingQuery
	}
	for {
		v := c.marks.view(lanes, total)
		away := append(pq.StringArray{}, v.away...) // never NULL
		found := finding{lanes: lanes}
		rows, err := c.claimRows(ctx, tx, &found, query,
			c.batchSize, c.batchBytes, away, v.from, v.newest, total, pq.Int64Array(lanes), c.table)
		if err != nil {
			return nil, err
		}
		if !c.marks.recognize(v, found.history) {
			continue // from the beginning
		}
		if !passing { // units were left out that the marks must not pass
			c.marks.learn(v, found)
		}
		return rows, nil
	}
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

func (c claimer) claimRows(ctx context.Context, tx *sql.Tx, found *finding, query string, args ...any) ([]row, error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("claim rows: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	var claimed []row
	for rows.Next() {
		row, err := scanClaim(rows, found)
		if err != nil {
			return nil, fmt.Errorf("claim rows: %w", err)
		}
		if row.seq > 0 {
			claimed = append(claimed, row)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("claim rows: %w", err)
	}
	if len(claimed) > 0 {
		found.first = claimed[0].seq
		found.last = max(found.last, claimed[len(claimed)-1].seq)
	}
	return claimed, nil
}

// scanClaim reads a line of rowsQuery. The only one of a claim that found no row is one
// without a seq.
func scanClaim(rows *sql.Rows, found *finding) (row, error) {
	var (
		newest sql.Null[int64]
		frozen pq.Int64Array
		line   rowScan
	)
	if err := rows.Scan(append([]any{&found.history, &newest, &frozen}, line.targets()...)...); err != nil {
		return row{}, err //nolint:wrapcheck // claimRows wraps it
	}
	found.last = max(found.last, newest.V)
	found.frozen = append(found.frozen, frozen...)
	return line.row(), nil
}

// rowScan takes the rowColumns of a line. Any may be NULL, if there is no row.
type rowScan struct {
	seq                  sql.Null[int64]
	id, destination, key sql.NullString
	text                 sql.NullString
	payload              []byte
	metadata             sql.NullString
}

func (s *rowScan) targets() []any {
	return []any{&s.seq, &s.id, &s.destination, &s.key, &s.text, &s.payload, &s.metadata}
}

func (s *rowScan) row() row {
	if !s.seq.Valid {
		return row{}
	}
	payload := s.payload
	if s.text.Valid {
		payload = []byte(s.text.String)
	}
	r := row{seq: s.seq.V, outgoing: Outgoing{
		Destination:  s.destination.String,
		PartitionKey: s.key.String,
		Message:      message.NewMessage(s.id.String, payload),
	}}
	var err error
	// The row's fault, not the claim's: the others go on.
	if r.outgoing.Message.Metadata, err = decodeMetadata(s.metadata.String); err != nil {
		r.unreadable = fmt.Errorf("metadata: %w", err)
	}
	return r
}

// decodeMetadata reads the jsonb column. A producer that writes SQL may put anything
// into the object: a value that is no string arrives as its JSON text.
func decodeMetadata(encoded string) (message.Metadata, error) {
	if encoded == "{}" {
		return message.Metadata{}, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(encoded), &values); err != nil {
		return nil, err //nolint:wrapcheck // row wraps it
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

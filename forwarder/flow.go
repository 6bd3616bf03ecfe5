package forwarder

import (
	"context"
	"database/sql"
	"math"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// flowQueries claim rows that do not wait.
type flowQueries struct {
	query string
	// passing is query for when others hold locks on rows.
	passing string
}

func newFlowQueries(cfg Config) flowQueries {
	if cfg.Ordering == None {
		query := flowQuery(cfg.Schema, `false`, `FOR UPDATE SKIP LOCKED`, ``)
		return flowQueries{query: query, passing: query}
	}
	held := heldExpression(cfg.Schema)
	return flowQueries{
		query:   flowQuery(cfg.Schema, held, `FOR UPDATE`, notBehindMissing(cfg.Schema)),
		passing: flowQuery(cfg.Schema, held, `FOR UPDATE SKIP LOCKED`, notBehindMissing(cfg.Schema)),
	}
}

// flowFilter selects what a claim may take from the flow.
const flowFilter = `published_at IS NULL AND next_attempt_at IS NULL AND seq > $4::bigint AND seq <= $12::bigint
	AND destination <> ALL ($3::text[])
	AND (unit_hash & ($6::integer - 1)) = ANY ($7::integer[]) AND unit_hash <> ALL ($9::integer[])`

// heldExpression is true for a row of the flow that is behind one of its unit that waits, or
// behind a dead letter that blocks it. $10 are the rows that wait and that the same claim has
// taken: the first ones of their units, so that it has taken all before the row if it has the
// last of them. Most of the time nothing waits, and nothing is looked up.
func heldExpression(s schema.Postgres) string {
	return `(SELECT w.unit_hash FROM ` + s.Outbox() + ` AS w WHERE w.next_attempt_at IS NOT NULL
			ORDER BY w.unit_hash, w.seq LIMIT 1) IS NOT NULL
		AND coalesce((SELECT b.seq <> ALL ($10::bigint[]) FROM ` + s.Outbox() + ` AS b
			WHERE ` + sameUnit(`b`, `head`) + ` AND b.next_attempt_at IS NOT NULL AND b.seq < head.seq
			ORDER BY b.unit_hash DESC, b.seq DESC LIMIT 1), false)
		OR (SELECT d.unit_hash FROM ` + s.DeadLetters() + ` AS d WHERE d.blocks
			ORDER BY d.unit_hash, d.seq LIMIT 1) IS NOT NULL
		AND ` + isBlocked(s, `head`)
}

// sameUnit says that two rows belong to one unit. The hash alone is for the index: two units
// may have the same.
func sameUnit(a, b string) string {
	return a + `.unit_hash = ` + b + `.unit_hash AND ` + a + `.destination = ` + b + `.destination AND ` + keyOf(a) + ` = ` + keyOf(b)
}

// keyOf is the effective partition key of a row.
func keyOf(row string) string {
	return `coalesce(nullif(` + row + `.partition_key, ''), ` + row + `.id)`
}

// isBehindWaiting and isBlocked are subqueries that the planner cannot turn into a join: one
// would read all that waits.
func isBehindWaiting(s schema.Postgres, row string) string {
	return `(SELECT true FROM ` + s.Outbox() + ` AS b
		WHERE ` + sameUnit(`b`, row) + ` AND b.next_attempt_at IS NOT NULL AND b.seq < ` + row + `.seq
		LIMIT 1) IS NOT NULL`
}

func isBlocked(s schema.Postgres, row string) string {
	return `(SELECT true FROM ` + s.DeadLetters() + ` AS d
		WHERE ` + sameUnit(`d`, row) + ` AND d.blocks AND d.seq < ` + row + `.seq
		LIMIT 1) IS NOT NULL`
}

// notBehindMissing leaves out the units of rows that the statement saw and has not got: others
// have them locked, or changed them while it waited. What it knows of such a unit is from before.
func notBehindMissing(s schema.Postgres) string {
	return `AND unit_hash NOT IN (
		SELECT unit_hash FROM ` + s.Outbox() + `
		WHERE ` + flowFilter + ` AND seq <= (SELECT max(seq) FROM head) AND seq NOT IN (SELECT seq FROM head))`
}

// columns are what rowColumns are made of.
const columns = `seq, unit_hash, attempts, last_error, id, destination, partition_key, payload, payload_bytes, metadata, next_attempt_at`

// size is what a row counts towards BatchBytes. It is known before any payload is read from
// where Postgres stores it.
const size = `coalesce(octet_length(payload), octet_length(payload_bytes))
	+ octet_length(metadata::text) + coalesce(octet_length(partition_key), 0)`

// flowQuery locks the rows at the head and returns as many as fit into the bytes
// allowed: $1 rows, $2 bytes, $3 destinations to leave out, $4 the seq to start behind,
// $5 whether to look for the newest seq, $6 how many lanes there are, $7 those to take,
// $8 the table's name, $9 units to leave out, $10 see heldExpression, $11 whether a first
// row that is too large is taken all the same, $12 the last seq to look at.
// The columns come from the locked version of a row, which is newer than the statement's
// snapshot if the lock was waited for.
//
// Beside them it returns, in one row at least, what the marks need to know, which rows are
// held back, the first seq beyond the last to look at, and up to which seq it returns all, if
// that is not the last.
func flowQuery(s schema.Postgres, held, lock, andThen string) string {
	const fits = `(total <= $2::bigint OR (place = 1 AND $11::boolean))`
	return `WITH head AS (
			SELECT ` + columns + ` FROM ` + s.Outbox() + ` WHERE ` + flowFilter + `
			ORDER BY seq
			LIMIT $1::integer
			` + lock + `
		), judged AS (
			SELECT ` + columns + `, ` + held + ` AS held FROM head
		), sized AS (
			SELECT ` + columns + `, sum(size) OVER (ORDER BY seq) AS total, row_number() OVER (ORDER BY seq) AS place
			FROM (SELECT ` + columns + `, ` + size + ` AS size FROM judged WHERE NOT held ` + andThen + `) AS measured
		)
		SELECT seen.history, seen.newest, seen.first, seen.beyond, seen.until,
			CASE WHEN coalesce(place, 1) = 1 THEN seen.held END, ` + rowColumns + `
		FROM (
			SELECT extract(epoch FROM pg_postmaster_start_time())::text || '/' || pg_relation_filenode($8::text::regclass) AS history,
				CASE WHEN $5::boolean THEN (SELECT max(n.seq) FROM ` + s.Outbox() + ` AS n WHERE n.seq > $4::bigint) END AS newest,
				(SELECT min(judged.seq) FROM judged) AS first,
				least(
					(SELECT min(sized.seq) - 1 FROM sized WHERE NOT ` + fits + `),
					CASE WHEN (SELECT count(*) FROM head) >= $1::integer THEN (SELECT max(head.seq) FROM head) END
				) AS until,
				(SELECT n.seq FROM ` + s.Outbox() + ` AS n WHERE n.seq > $12::bigint ORDER BY n.seq LIMIT 1) AS beyond,
				(SELECT array_agg(judged.seq) FROM judged WHERE held AND $10::bigint[] IS NOT NULL ` + andThen + `)::text AS held
		) AS seen
		LEFT JOIN sized ON ` + fits + `
		ORDER BY seq`
}

// flowRows are those that a claim has found in the flow.
type flowRows struct {
	rows []row
	held []int64
	// until is the seq up to which it has found all.
	until int64
}

// claimFlow reads it also where rows that are due take all of the batch, if some may be before
// them.
func (c claimer) claimFlow(ctx context.Context, tx *sql.Tx, ask request, due dueRows, lanes []int64, total int) (flowRows, error) {
	rows, bytes := ask.rows-len(due.rows), c.config.BatchBytes-due.bytes()
	v := c.marks.view(lanes, total)
	if (rows <= 0 || bytes <= 0) && (c.config.Ordering == None || due.last() <= v.from) {
		return flowRows{until: v.from}, nil
	}
	query := c.flow.query
	if ask.passing {
		query = c.flow.passing
	}
	for from := v.from; ; {
		found := finding{lanes: lanes}
		flowing, err := c.readFlow(ctx, tx, &found, query,
			max(1, rows), max(0, bytes), append(pq.StringArray{}, v.away...), from, v.newest, total, pq.Int64Array(lanes), c.table,
			ask.tried, due.seqs(), len(due.rows) == 0, from+window)
		if err != nil {
			return flowRows{}, err
		}
		if !c.marks.recognize(v, found.history) { // from the beginning
			v = c.marks.view(lanes, total)
			from = v.from
			continue
		}
		if !ask.passing && len(ask.tried) == 0 { // units were left out that the marks must not pass
			c.marks.learn(v, found)
		}
		if found.first > 0 || found.beyond == 0 {
			if found.beyond > 0 {
				flowing.until = min(flowing.until, from+window)
			}
			flowing.rows = flowing.rows[:min(len(flowing.rows), max(0, rows))]
			return flowing, nil
		}
		from = found.beyond - 1
	}
}

// window is how many seqs a statement looks at, so that it ends in time however many rows
// there are that it may not take.
const window = 1_000_000

func (c claimer) readFlow(ctx context.Context, tx *sql.Tx, found *finding, query string, args ...any) (flowing flowRows, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return flowRows{}, err //nolint:wrapcheck // claim wraps it
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	for rows.Next() {
		var (
			newest, first, beyond, until sql.Null[int64]
			held                         pq.Int64Array
			line                         rowScan
		)
		if err := rows.Scan(append([]any{&found.history, &newest, &first, &beyond, &until, &held}, line.targets()...)...); err != nil {
			return flowRows{}, err //nolint:wrapcheck // claim wraps it
		}
		found.first, found.last, found.beyond = first.V, max(found.last, first.V, newest.V), beyond.V
		flowing.held, flowing.until = append(flowing.held, held...), math.MaxInt64
		if until.Valid {
			flowing.until = until.V
		}
		if row := line.row(); row.seq > 0 { // a claim that found none has a line all the same
			flowing.rows = append(flowing.rows, row)
			found.last = max(found.last, row.seq)
		}
	}
	for _, seq := range flowing.held {
		found.last = max(found.last, seq)
	}
	return flowing, rows.Err() //nolint:wrapcheck // claim wraps it
}

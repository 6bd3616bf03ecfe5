package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"slices"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// flowQueries claim rows that do not wait.
type flowQueries struct {
	query string
	// passing is query for when others hold locks on rows.
	passing string
	// contents are those of rows that were too large to come with the others.
	contents string
	newest   string
	beyond   string
	heldBack heldBackQueries
}

func newFlowQueries(cfg Config) flowQueries {
	q := flowQueries{
		query:    flowQuery(cfg.Schema, `FOR UPDATE`),
		passing:  flowQuery(cfg.Schema, `FOR UPDATE SKIP LOCKED`),
		contents: contentsQuery(cfg.Schema),
		newest:   `SELECT coalesce(max(seq), 0) FROM ` + cfg.Schema.Outbox() + ` WHERE seq > $1::bigint`,
		beyond:   beyondQuery(cfg.Schema),
		heldBack: newHeldBackQueries(cfg.Schema),
	}
	if cfg.Ordering == None {
		q.query = q.passing
	}
	return q
}

// flowFilter selects what a claim may take from the flow: $1 destinations to leave out, $2 the
// seq to start behind, $3 the last seq to look at, $4 how many lanes there are, $5 those to take,
// $6 units to leave out.
const flowFilter = `published_at IS NULL AND next_attempt_at IS NULL AND seq > $2::bigint AND seq <= $3::bigint
	AND destination <> ALL ($1::text[])
	AND (unit_hash & ($4::integer - 1)) = ANY ($5::integer[]) AND unit_hash <> ALL ($6::integer[])`

// flowQuery locks the rows at the head, $7 at most. Payloads and metadata of more than $8 bytes
// stay where Postgres stores them. The columns come from the locked version of a row, which is
// newer than the statement's snapshot if the lock was waited for.
func flowQuery(s schema.Postgres, lock string) string {
	const small = `CASE WHEN size <= $8::integer THEN `
	return `SELECT seq, unit_hash, attempts, fresh, id, destination, coalesce(nullif(partition_key, ''), id), size,
			` + small + `payload END, ` + small + `payload_bytes END, ` + small + `metadata END
		FROM (
			SELECT seq, unit_hash, attempts, fresh, id, destination, partition_key, payload, payload_bytes, metadata,
				coalesce(octet_length(payload), octet_length(payload_bytes))
				+ octet_length(metadata) + coalesce(octet_length(partition_key), 0) AS size
			FROM (
				SELECT seq, unit_hash, attempts, last_error IS NULL AS fresh, id, destination, partition_key,
					payload, payload_bytes, metadata::text AS metadata
				FROM ` + s.Outbox() + ` WHERE ` + flowFilter + `
				ORDER BY seq
				LIMIT $7::integer
				` + lock + `
			) AS head
			OFFSET 0
		) AS measured`
}

// flowRows are those that a claim has found in the flow.
type flowRows struct {
	rows []row
	held []int64
	// missing are units of which others have rows locked.
	missing []int64
	// until is the seq up to which it has found all.
	until int64
}

// claimFlow reads it also where rows that are due take all of the batch, if some may be before
// them.
func (c claimer) claimFlow(ctx context.Context, tx *sql.Tx, ask request, due dueRows, in territory) (flowRows, error) {
	v := c.marks.view(in)
	ask.rows -= len(due.rows)
	bytes := c.config.BatchBytes - due.bytes()
	if (ask.rows <= 0 || bytes <= 0) && (c.config.Ordering == None || due.last() <= v.from) {
		return flowRows{until: v.from}, nil
	}
	var missing []int64
	for from := v.from; ; {
		found, flowing, err := c.readFlow(ctx, tx, ask, due, in, v, from)
		if err != nil {
			return flowRows{}, err
		}
		if !ask.passing && len(ask.tried) == 0 { // units were left out that the marks must not pass
			c.marks.learn(v, found)
		}
		if found.first == 0 && found.beyond > 0 {
			from = found.beyond - 1
			continue
		}
		missing = append(missing, flowing.missing...)
		if len(flowing.missing) > 0 && len(flowing.rows)+len(flowing.held) == 0 && found.full { // others may be behind them
			ask.tried = append(ask.tried, flowing.missing...)
			continue
		}
		flowing.missing = missing
		flowing.fit(max(0, ask.rows), bytes, len(due.rows) == 0)
		return flowing, c.fetchContents(ctx, tx, flowing.rows)
	}
}

// window is how many seqs a statement looks at, so that it ends in time however many rows
// there are that it may not take.
const window = 1_000_000

// readFlow locks the rows at the head of a window, and tells those that are to be held back.
func (c claimer) readFlow(
	ctx context.Context, tx *sql.Tx, ask request, due dueRows, in territory, v view, from int64,
) (found finding, flowing flowRows, err error) {
	query, limit := c.flow.query, max(1, ask.rows)
	if ask.passing {
		query = c.flow.passing
	}
	filter := []any{append(pq.StringArray{}, v.away...), from, from + window, in.total, in.lanes, ask.tried}
	if flowing.rows, err = c.lockHead(ctx, tx, query, append(filter, limit, c.inlineBytes())...); err != nil {
		return found, flowRows{}, err
	}
	found.lanes, flowing.until = in.lanes, from+window
	if n := len(flowing.rows); n > 0 {
		found.first, found.last = flowing.rows[0].seq, flowing.rows[n-1].seq
		if found.full = n == limit; found.full {
			flowing.until = found.last
		}
	} else {
		if err := tx.QueryRowContext(ctx, c.flow.beyond, from+window).Scan(&found.beyond); err != nil {
			return found, flowRows{}, err //nolint:wrapcheck // claim wraps it
		}
		if found.beyond == 0 {
			flowing.until = math.MaxInt64
		}
	}
	if v.newest {
		var newest int64
		if err := tx.QueryRowContext(ctx, c.flow.newest, from).Scan(&newest); err != nil {
			return found, flowRows{}, err //nolint:wrapcheck // claim wraps it
		}
		found.last = max(found.last, newest)
	}
	if c.config.Ordering == None {
		return found, flowing, nil
	}
	if ask.passing {
		filter[2] = min(max(lastOf(flowing.rows), due.last()), from+window)
		if err := c.leaveBehindMissing(ctx, tx, &flowing, filter); err != nil {
			return found, flowRows{}, err
		}
	}
	return found, flowing, c.holdBack(ctx, tx, &flowing, due)
}

func lastOf(rows []row) int64 {
	if len(rows) == 0 {
		return 0
	}
	return rows[len(rows)-1].seq
}

// inlineBytes is how large a row may be to come with its payload. So no more than BatchBytes come
// with the rows that are locked, unless they are tiny.
func (c claimer) inlineBytes() int {
	const tiny = 1024
	return max(tiny, c.config.BatchBytes/c.config.BatchSize)
}

func (c claimer) lockHead(ctx context.Context, tx *sql.Tx, query string, args ...any) (head []row, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err //nolint:wrapcheck // claim wraps it
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	var line flowLine
	targets := line.targets()
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return nil, err //nolint:wrapcheck // claim wraps it
		}
		head = append(head, line.row())
	}
	slices.SortFunc(head, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
	return head, rows.Err() //nolint:wrapcheck // claim wraps it
}

// fit leaves as many rows as are wished and fit. A first one that is too large is taken all the
// same, if it may be alone.
func (f *flowRows) fit(rows, bytes int, alone bool) {
	total := 0
	for i, r := range f.rows {
		total += r.bytes
		if i == rows || total > bytes && (i > 0 || !alone) {
			f.until = min(f.until, r.seq-1)
			f.rows = f.rows[:i]
			return
		}
	}
}

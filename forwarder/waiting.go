package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// A row waits while its next_attempt_at is set. The first of a unit that failed waits for
// that time. Those behind it are parked at infinity when a claim meets them, so that no
// later claim does; when the first is settled or dead-lettered, the next becomes due.

// waitingQueries claim rows that have waited.
type waitingQueries struct {
	query   string
	passing string
	park    string
}

func newWaitingQueries(cfg Config) waitingQueries {
	q := waitingQueries{
		park: `UPDATE ` + cfg.Schema.Outbox() + ` SET next_attempt_at = 'infinity' WHERE seq = ANY ($1::bigint[])`,
	}
	if cfg.Ordering == None {
		q.query = dueQuery(cfg.Schema, ``, `SELECT seq FROM due`, `FOR UPDATE SKIP LOCKED`, ``)
		q.passing = q.query
		return q
	}
	taken := `SELECT next.seq, due.unit_hash FROM due, LATERAL (
			SELECT b.seq FROM ` + cfg.Schema.Outbox() + ` AS b
			WHERE ` + sameUnit(`b`, `due`) + ` AND b.next_attempt_at IS NOT NULL AND b.seq >= due.seq
			ORDER BY b.unit_hash, b.seq
			LIMIT CASE WHEN due.fresh THEN $1::integer ELSE 1 END
		) AS next`
	isFirst := `AND NOT ` + isBehindWaiting(cfg.Schema, `f`) + ` AND NOT ` + isBlocked(cfg.Schema, `f`)
	const notBehindMissing = `WHERE unit_hash NOT IN (
		SELECT taken.unit_hash FROM taken WHERE seq <= (SELECT max(seq) FROM head) AND seq NOT IN (SELECT seq FROM head))`
	q.query = dueQuery(cfg.Schema, isFirst, taken, `FOR UPDATE`, notBehindMissing)
	q.passing = dueQuery(cfg.Schema, isFirst, taken, `FOR UPDATE SKIP LOCKED`, notBehindMissing)
	return q
}

// columns are what rowColumns are made of.
const columns = `seq, unit_hash, attempts, last_error, id, destination, partition_key, payload, payload_bytes, metadata, next_attempt_at`

// size is what a row counts towards BatchBytes. It is known before any payload is read from
// where Postgres stores it.
const size = `coalesce(octet_length(payload), octet_length(payload_bytes))
	+ octet_length(metadata::text) + coalesce(octet_length(partition_key), 0)`

// dueQuery locks rows that are due and the first of their units that wait, and what is
// behind those that have not failed themselves: $1 rows, $2 bytes, $3 destinations to
// leave out, $4 how many units, $5 how many lanes there are, $6 those to take, $7 units to
// leave out. Beside them it returns how many units are due and how many rows it has found.
func dueQuery(s schema.Postgres, isFirst, taken, lock, andThen string) string {
	return `WITH due AS (
			SELECT f.seq, f.unit_hash, f.destination, f.partition_key, f.id, f.attempts = 0 AND f.last_error IS NULL AS fresh
			FROM ` + s.Outbox() + ` AS f
			WHERE f.next_attempt_at <= statement_timestamp() AND f.next_attempt_at < 'infinity'
				AND f.destination <> ALL ($3::text[])
				AND (f.unit_hash & ($5::integer - 1)) = ANY ($6::integer[]) AND f.unit_hash <> ALL ($7::integer[])
				` + isFirst + `
			ORDER BY f.next_attempt_at
			LIMIT $4::integer
		), taken AS (
			` + taken + `
		), head AS (
			SELECT ` + columns + ` FROM ` + s.Outbox() + `
			WHERE seq = ANY (ARRAY(SELECT taken.seq FROM taken)) AND next_attempt_at IS NOT NULL AND published_at IS NULL
				-- Still due, when others had it first.
				AND (next_attempt_at <= statement_timestamp() OR seq <> ALL (ARRAY(SELECT due.seq FROM due)))
			ORDER BY seq
			LIMIT $1::integer
			` + lock + `
		), sized AS (
			SELECT ` + columns + `, sum(size) OVER (ORDER BY seq) AS total, row_number() OVER (ORDER BY seq) AS place
			FROM (SELECT ` + columns + `, ` + size + ` AS size FROM head ` + andThen + `) AS measured
		)
		SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM taken), ` + rowColumns + `
		FROM sized
		WHERE place = 1 OR total <= $2::bigint
		ORDER BY seq`
}

// dueShare is the part of a batch that may be rows which have failed: however many they
// are, and however slowly they fail again, the others go on.
const dueShare = 4

// dueRows are those that a claim has found to be due.
type dueRows struct {
	rows []row
	more bool
}

func (d dueRows) seqs() pq.Int64Array {
	seqs := make(pq.Int64Array, len(d.rows)) // never NULL
	for i, r := range d.rows {
		seqs[i] = r.seq
	}
	return seqs
}

func (d dueRows) last() int64 {
	return lastOf(d.rows)
}

// without leaves out units.
func (d dueRows) without(units []int64) dueRows {
	d.rows = slices.DeleteFunc(d.rows, func(r row) bool { return slices.Contains(units, r.unitHash) })
	return d
}

func (d dueRows) upTo(seq int64) dueRows {
	for d.last() > seq {
		d.rows = d.rows[:len(d.rows)-1]
	}
	return d
}

func (d dueRows) bytes() (sum int) {
	for _, r := range d.rows {
		sum += r.bytes
	}
	return sum
}

func (c claimer) claimDue(ctx context.Context, tx *sql.Tx, ask request, in territory) (dueRows, error) {
	query := c.waiting.query
	if ask.passing {
		query = c.waiting.passing
	}
	limit := max(1, ask.rows/dueShare)
	rows, err := tx.QueryContext(ctx, query, ask.rows, c.config.BatchBytes, append(pq.StringArray{}, c.marks.leftOut()...),
		limit, in.total, in.lanes, ask.tried)
	if err != nil {
		return dueRows{}, err //nolint:wrapcheck // claim wraps it
	}
	defer func() { _ = rows.Close() }() // rows.Err tells what went wrong
	var due dueRows
	var units, taken int
	for rows.Next() {
		var line rowScan
		if err := rows.Scan(append([]any{&units, &taken}, line.targets()...)...); err != nil {
			return dueRows{}, err //nolint:wrapcheck // claim wraps it
		}
		due.rows = append(due.rows, line.row())
	}
	due.more = units >= limit || taken >= ask.rows || len(due.rows) < taken
	return due, rows.Err() //nolint:wrapcheck // claim wraps it
}

// park puts rows aside that are behind one that waits.
func (c claimer) park(ctx context.Context, tx *sql.Tx, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	result, err := tx.ExecContext(ctx, c.waiting.park, pq.Int64Array(seqs))
	if err != nil {
		return fmt.Errorf("park rows behind one that waits: %w", err)
	}
	return requireAffected(result, len(seqs))
}

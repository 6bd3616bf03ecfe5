package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// waitingQuery counts rows that are not in the flow, through their indexes: $1 is how many
// of each kind at most. It returns those that wait at all, those that have a time, and those
// of them whose time has come.
func waitingQuery(outbox string) string {
	return `SELECT waiting.rows, timed.rows, timed.due FROM (
			SELECT count(*) AS rows FROM (
				SELECT FROM ` + outbox + ` WHERE next_attempt_at IS NOT NULL ORDER BY unit_hash, seq LIMIT $1::integer
			) AS w
		) AS waiting, (
			SELECT count(*) AS rows, count(*) FILTER (WHERE next_attempt_at <= statement_timestamp()) AS due FROM (
				SELECT next_attempt_at FROM ` + outbox + ` WHERE next_attempt_at < 'infinity' ORDER BY next_attempt_at LIMIT $1::integer
			) AS t
		) AS timed`
}

// readWaiting divides the backlog. What was sampled for Held stands where too many wait to
// be counted.
func (a *Admin) readWaiting(ctx context.Context, tx *sql.Tx, stats *Stats) error {
	var waiting, timed, due int64
	err := tx.QueryRowContext(ctx, waitingQuery(a.schema.Outbox()), statsRows+1).Scan(&waiting, &timed, &due)
	if err != nil {
		return fmt.Errorf("count what waits: %w", err)
	}
	stats.NotDue = Count{timed - due, timed > statsRows}
	if waiting <= statsRows {
		stats.Held = Count{waiting - timed, false}
	} else {
		stats.Held = Count{max(stats.Held.Rows, waiting-timed), true}
	}
	// Rows may have come and gone between the statements.
	stats.Due = Count{
		max(0, stats.Backlog.Rows-stats.NotDue.Rows-stats.Held.Rows),
		stats.Backlog.Estimated || stats.NotDue.Estimated || stats.Held.Estimated,
	}
	return nil
}

// readFailing groups what is tried next by its error. A row that waited behind another one
// has none yet.
func (a *Admin) readFailing(ctx context.Context, tx *sql.Tx, stats *Stats) error {
	type cause struct{ destination, group string }
	groups := map[cause]*FailingGroup{}
	var oldest time.Time
	err := readAll(ctx, tx, `SELECT seq, id, destination, coalesce(nullif(partition_key, ''), id), attempts, last_error,
			`+asText(`next_attempt_at`)+`, `+asText(`created_at`)+`
		FROM (
			SELECT seq, id, destination, partition_key, attempts, last_error, next_attempt_at, created_at
			FROM `+a.schema.Outbox()+` WHERE next_attempt_at < 'infinity' ORDER BY next_attempt_at LIMIT $1::integer
		) AS next
		ORDER BY next_attempt_at`, func(rows *sql.Rows) error {
		var (
			m             FailingMessage
			destination   string
			attempts      int
			text          sql.NullString
			next, created sql.NullString
		)
		if err := rows.Scan(&m.Seq, &m.EventID, &destination, &m.PartitionKey, &attempts, &text, &next, &created); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}
		if at := textTime(created); oldest.IsZero() || (!at.IsZero() && at.Before(oldest)) {
			oldest = at
		}
		if !text.Valid {
			return nil
		}
		m.Error, m.NextAttemptAt = text.String, textTime(next)
		key := cause{destination, errorGroup(m.Error, m.EventID, m.PartitionKey)}
		g := groups[key]
		if g == nil {
			g = &FailingGroup{Destination: key.destination, ErrorGroup: key.group, Example: m}
			groups[key] = g
		}
		g.Count++
		g.MostAttempts = max(g.MostAttempts, attempts)
		return nil
	}, statsFailing)
	if err != nil {
		return fmt.Errorf("read what fails: %w", err)
	}
	stats.OldestAge = max(stats.OldestAge, stats.age(oldest))
	for _, g := range groups {
		stats.Failing = append(stats.Failing, *g)
	}
	slices.SortFunc(stats.Failing, func(x, y FailingGroup) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Example.Seq, y.Example.Seq))
	})
	stats.Failing = stats.Failing[:min(len(stats.Failing), statsGroups)]
	return nil
}

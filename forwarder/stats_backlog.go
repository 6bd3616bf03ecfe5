package forwarder

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// tally is what was counted, or estimated, for a destination.
type tally struct {
	unpublished, held float64
	oldest            time.Time
}

func (t *tally) add(unpublished, held float64, oldest time.Time) {
	t.unpublished += unpublished
	t.held += held
	if t.oldest.IsZero() || (!oldest.IsZero() && oldest.Before(t.oldest)) {
		t.oldest = oldest
	}
}

// backlogColumns are counted by countColumns, by place and destination.
const backlogColumns = `seq, destination, published_at, next_attempt_at, created_at`

func countColumns() string {
	return `destination, count(*) FILTER (WHERE published_at IS NULL), count(*) FILTER (WHERE next_attempt_at = 'infinity'),
		` + asText(`min(created_at) FILTER (WHERE published_at IS NULL AND isfinite(created_at))`) + `,
		sum(count(*)) OVER (PARTITION BY place)::bigint, min(min(seq)) OVER (PARTITION BY place), max(max(seq)) OVER (PARTITION BY place)`
}

// newestQuery counts the newest rows: $1 is how many.
func newestQuery(outbox string) string {
	return `SELECT place, ` + countColumns() + `
		FROM (SELECT 0 AS place, ` + backlogColumns + ` FROM ` + outbox + ` ORDER BY seq DESC LIMIT $1::integer) AS newest
		GROUP BY place, destination`
}

// sampleQuery counts a few rows at each of many places: $1 the first seq, $2 the distance
// of two places, $3 how many, $4 the seq at which to stop, $5 how many rows at each.
func sampleQuery(outbox string) string {
	return `SELECT place, ` + countColumns() + `
		FROM (
			SELECT place.n AS place, near.*
			FROM generate_series(0, $3::bigint - 1) AS place (n) CROSS JOIN LATERAL (
				SELECT ` + backlogColumns + ` FROM ` + outbox + `
				WHERE seq >= $1::bigint + place.n * $2::bigint AND seq < least($1::bigint + (place.n + 1) * $2::bigint, $4::bigint)
				ORDER BY seq LIMIT $5::integer
			) AS near
		) AS sample
		GROUP BY place, destination`
}

// readBacklog counts the newest rows, and estimates what is before them from how dense the
// rows are, and how many of them are published, at places all over.
func (a *Admin) readBacklog(ctx context.Context, tx *sql.Tx, stats *Stats) error {
	found := map[string]*tally{}
	newest, first, err := a.countNewest(ctx, tx, found)
	if err != nil {
		return fmt.Errorf("count the newest rows: %w", err)
	}
	estimated := newest > statsRows
	if estimated {
		if err := a.sampleBefore(ctx, tx, first, found); err != nil {
			return fmt.Errorf("sample rows: %w", err)
		}
	}
	var total tally
	for destination, t := range found {
		if t.unpublished == 0 {
			continue
		}
		total.add(t.unpublished, t.held, t.oldest)
		stats.Destinations = append(stats.Destinations, DestinationStats{
			Destination: destination, Backlog: Count{int64(t.unpublished + 0.5), estimated}, OldestAge: stats.age(t.oldest),
		})
	}
	slices.SortFunc(stats.Destinations, func(x, y DestinationStats) int {
		return cmp.Or(cmp.Compare(y.Backlog.Rows, x.Backlog.Rows), cmp.Compare(x.Destination, y.Destination))
	})
	stats.Destinations = stats.Destinations[:min(len(stats.Destinations), statsDestinations)]
	stats.Backlog = Count{int64(total.unpublished + 0.5), estimated}
	stats.Held = Count{int64(total.held + 0.5), estimated}
	stats.OldestAge = stats.age(total.oldest)
	return nil
}

// counted is a line of newestQuery or sampleQuery.
type counted struct {
	place             int64
	destination       string
	unpublished, held int64
	oldest            sql.NullString
	// Of all destinations at the place.
	rows, first, last int64
}

func readCounted(ctx context.Context, tx *sql.Tx, query string, use func(c counted), args ...any) error {
	return readAll(ctx, tx, query, func(rows *sql.Rows) error {
		var c counted
		err := rows.Scan(&c.place, &c.destination, &c.unpublished, &c.held, &c.oldest, &c.rows, &c.first, &c.last)
		use(c)
		return err //nolint:wrapcheck // readBacklog wraps it
	}, args...)
}

// countNewest returns how many rows it has read, one more than statsRows where there are
// more, and the first of them.
func (a *Admin) countNewest(ctx context.Context, tx *sql.Tx, found map[string]*tally) (rows, first int64, err error) {
	err = readCounted(ctx, tx, newestQuery(a.schema.Outbox()), func(c counted) {
		rows, first = c.rows, c.first
		found[c.destination] = &tally{float64(c.unpublished), float64(c.held), textTime(c.oldest)}
	}, statsRows+1)
	return rows, first, err
}

func (a *Admin) sampleBefore(ctx context.Context, tx *sql.Tx, end int64, found map[string]*tally) error {
	var lowest sql.Null[int64]
	if err := tx.QueryRowContext(ctx, `SELECT min(seq) FROM `+a.schema.Outbox()).Scan(&lowest); err != nil {
		return err //nolint:wrapcheck // readBacklog wraps it
	}
	if !lowest.Valid || lowest.V >= end {
		return nil
	}
	distance := (end-lowest.V)/statsStrata + 1
	return readCounted(ctx, tx, sampleQuery(a.schema.Outbox()), func(c counted) {
		stands := 1.0 // a row of the sample stands for itself where all were read
		if c.rows == statsSample {
			next := min(end, lowest.V+(c.place+1)*distance)
			stands = float64(next-c.first) / float64(c.last-c.first+1)
		}
		t := found[c.destination]
		if t == nil {
			t = &tally{}
			found[c.destination] = t
		}
		t.add(float64(c.unpublished)*stands, float64(c.held)*stands, textTime(c.oldest))
	}, lowest.V, distance, statsStrata, end, statsSample)
}

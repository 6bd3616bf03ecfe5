package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// DeadLetterGroup are the dead letters of one destination and one cause.
type DeadLetterGroup struct {
	Destination string
	// ErrorGroup is their error without what differs from message to message. To select
	// them, put it into a Filter with the destination.
	ErrorGroup string
	// Count is how many there are, Blocking how many of them block their units.
	Count, Blocking int64
	// First and Last are when the first and the last of them died.
	First, Last time.Time
	// ExampleID and ExampleError are of the newest.
	ExampleID    int64
	ExampleError string
}

// groupsOf counts what from holds, and calls the groups by size.
func groupsOf(from string) string {
	return `SELECT destination, error_group, count(*), count(*) FILTER (WHERE blocks),
			` + asText(`min(dead_at)`) + `, ` + asText(`max(dead_at)`) + `, max(dead_letter_id)
		FROM ` + from + ` GROUP BY destination, error_group ORDER BY count(*) DESC, max(dead_letter_id) DESC`
}

func groupsWithExample(table, groups string) string {
	return `SELECT g.destination, g.error_group, g.count, g.blocking, g.first, g.last, g.example, d.error
		FROM (` + groups + `) AS g (destination, error_group, count, blocking, first, last, example)
		JOIN ` + table + ` AS d ON d.dead_letter_id = g.example ORDER BY g.count DESC, g.example DESC`
}

// DeadLetterGroups counts the dead letters that the filter selects, by destination and
// cause, the largest group first. It reads all of them, without payloads; Stats has the
// largest groups of an outbox at less cost. Errors wrap ErrInvalidFilter or come from the
// database.
func (a *Admin) DeadLetterGroups(ctx context.Context, f Filter) (groups []DeadLetterGroup, err error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	table := a.schema.DeadLetters()
	query := groupsWithExample(table, groupsOf(table+` WHERE `+filterCondition))
	err = a.read(ctx, func(tx *sql.Tx) error {
		groups, err = readGroups(ctx, tx, query, f.filterArgs()...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("forwarder: group %s: %w", table, err)
	}
	return groups, nil
}

func readGroups(ctx context.Context, tx *sql.Tx, query string, args ...any) (groups []DeadLetterGroup, err error) {
	err = readAll(ctx, tx, query, func(rows *sql.Rows) error {
		var (
			g           DeadLetterGroup
			first, last sql.NullString
		)
		err := rows.Scan(&g.Destination, &g.ErrorGroup, &g.Count, &g.Blocking, &first, &last, &g.ExampleID, &g.ExampleError)
		g.First, g.Last = textTime(first), textTime(last)
		groups = append(groups, g)
		return err //nolint:wrapcheck // DeadLetterGroups and Stats wrap it
	}, args...)
	return groups, err
}

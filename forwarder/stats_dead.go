package forwarder

import (
	"context"
	"database/sql"
	"fmt"
)

// readDead counts the newest dead letters, and goes by the numbers of the others where there
// are too many: the table's own estimate, if it has one, and no more than have ever been.
func (a *Admin) readDead(ctx context.Context, tx *sql.Tx, stats *Stats) error {
	table := a.schema.DeadLetters()
	var counted, numbers, estimate int64
	err := tx.QueryRowContext(ctx, `SELECT
			(SELECT count(*) FROM (SELECT FROM `+table+` ORDER BY dead_letter_id DESC LIMIT $1::integer) AS newest),
			coalesce((SELECT max(dead_letter_id) - min(dead_letter_id) + 1 FROM `+table+`), 0),
			(SELECT c.reltuples::bigint FROM pg_class AS c WHERE c.oid = $2::text::regclass)`, statsRows+1, table).
		Scan(&counted, &numbers, &estimate)
	if err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	stats.DeadLetters = Count{Rows: counted}
	if counted > statsRows {
		if estimate < counted { // it is old, or unknown
			estimate = numbers
		}
		stats.DeadLetters = Count{min(estimate, numbers), true}
	}
	groups := groupsOf(`(
			SELECT dead_letter_id, destination, error_group, blocks, dead_at FROM ` + table + `
			ORDER BY dead_letter_id DESC LIMIT $1::integer
		) AS newest`)
	stats.DeadLetterGroups, err = readGroups(ctx, tx, groupsWithExample(table, groups+` LIMIT $2::integer`), statsRows, statsGroups)
	if err != nil {
		return fmt.Errorf("group dead letters: %w", err)
	}
	return nil
}

// blockedQuery finds units that stand still: $1 how many dead letters to look at, $2 how
// many units, $3 how many rows to count behind each.
func blockedQuery(outbox, table string) string {
	return `SELECT unit.destination, unit.key, unit.dead_letter_id, unit.id, unit.error, ` + asText(`unit.dead_at`) + `, (
			SELECT count(*) FROM (
				SELECT FROM ` + outbox + ` AS w WHERE w.unit_hash = unit.unit_hash AND w.next_attempt_at IS NOT NULL
				ORDER BY w.unit_hash, w.seq LIMIT $3::integer
			) AS held
		) AS held
		FROM (
			SELECT DISTINCT ON (unit_hash, destination, key) unit_hash, destination, key, seq, dead_letter_id, id, error, dead_at
			FROM (
				SELECT unit_hash, destination, coalesce(nullif(partition_key, ''), id) AS key, seq, dead_letter_id, id, error, dead_at
				FROM ` + table + ` WHERE blocks ORDER BY unit_hash, seq LIMIT $1::integer
			) AS blocking
			ORDER BY unit_hash, destination, key, seq
			LIMIT $2::integer
		) AS unit
		ORDER BY held DESC, unit.dead_at`
}

func (a *Admin) readBlocked(ctx context.Context, tx *sql.Tx, stats *Stats) error {
	const lettersRead, units = 10_000, 100
	table := a.schema.DeadLetters()
	err := readAll(ctx, tx, blockedQuery(a.schema.Outbox(), table), func(rows *sql.Rows) error {
		var (
			unit  BlockedUnit
			since sql.NullString
		)
		err := rows.Scan(&unit.Destination, &unit.PartitionKey, &unit.DeadLetterID, &unit.EventID, &unit.Error, &since, &unit.Held.Rows)
		unit.Since, unit.Held.Estimated = textTime(since), unit.Held.Rows > statsHeld
		stats.Blocked = append(stats.Blocked, unit)
		return err //nolint:wrapcheck // wrapped below
	}, lettersRead, units, statsHeld+1)
	if err != nil {
		return fmt.Errorf("read blocked units: %w", err)
	}
	var letters int64
	err = tx.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT unit_hash) FROM (
			SELECT unit_hash FROM `+table+` WHERE blocks ORDER BY unit_hash, seq LIMIT $1::integer
		) AS blocking`, statsRows+1).Scan(&letters, &stats.BlockedUnits.Rows)
	if err != nil {
		return fmt.Errorf("count blocked units: %w", err)
	}
	stats.BlockedUnits.Estimated = letters > statsRows
	return nil
}

func (a *Admin) readAway(ctx context.Context, tx *sql.Tx, stats *Stats) error {
	const limit = 100
	err := readAll(ctx, tx, `SELECT kind, name, `+asText(`since`)+`, `+asText(`tried_at`)+`, `+asText(`next_try_at`)+`, error
		FROM `+a.schema.Absences()+` AS a ORDER BY a.since, kind, name LIMIT $1::integer`, func(rows *sql.Rows) error {
		var (
			away               Away
			since, tried, next sql.NullString
		)
		err := rows.Scan(&away.Kind, &away.Name, &since, &tried, &next, &away.Error)
		away.Since, away.TriedAt, away.NextTryAt = textTime(since), textTime(tried), textTime(next)
		stats.Away = append(stats.Away, away)
		return err //nolint:wrapcheck // wrapped below
	}, limit)
	if err != nil {
		return fmt.Errorf("read what is away: %w", err)
	}
	return nil
}

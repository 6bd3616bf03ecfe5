package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"
)

// DeleteDeadLetters deletes dead letters that died more than age ago, by the database's
// clock, and returns how many. Those that block their units stay, however old they are. In
// everything else it is as DeletePublished.
func (a *Admin) DeleteDeadLetters(ctx context.Context, age time.Duration) (deleted int64, err error) {
	if age <= 0 {
		return 0, fmt.Errorf("%w: it is %s", ErrInvalidAge, age)
	}
	return a.deleteDeadLetters(ctx, age, noPace)
}

// oldDeadLettersQuery reads dead letters behind the moment $1 and the number $2, at most $4,
// that died before $3, and deletes those that do not block. It returns where it has come to.
func oldDeadLettersQuery(table string) string {
	const cutoff = `(timestamptz 'epoch' + interval '1 microsecond' * $3::bigint::float8)`
	return `WITH near AS (
			SELECT dead_letter_id, dead_at, blocks FROM ` + table + `
			WHERE (dead_at, dead_letter_id) > ($1::text::timestamptz, $2::bigint) AND dead_at < ` + cutoff + `
			ORDER BY dead_at, dead_letter_id LIMIT $4::integer
		), old AS (
			SELECT dead_letter_id FROM ` + table + `
			WHERE dead_letter_id = ANY (ARRAY(SELECT dead_letter_id FROM near WHERE NOT blocks)) AND NOT blocks
			FOR UPDATE SKIP LOCKED
		), gone AS (
			DELETE FROM ` + table + ` WHERE dead_letter_id = ANY (ARRAY(SELECT dead_letter_id FROM old)) RETURNING dead_letter_id
		), last AS (
			SELECT dead_at, dead_letter_id FROM near ORDER BY dead_at DESC, dead_letter_id DESC LIMIT 1
		)
		SELECT (SELECT count(*) FROM near), (SELECT count(*) FROM gone),
			coalesce((SELECT dead_at::text FROM last), ''), coalesce((SELECT dead_letter_id FROM last), 0)`
}

func (a *Admin) deleteDeadLetters(ctx context.Context, age time.Duration, pace paceFunc) (deleted int64, err error) {
	now, err := a.clock(ctx)
	if err != nil {
		return 0, fmt.Errorf("forwarder: retention: %w", err)
	}
	query, cutoff := oldDeadLettersQuery(a.schema.DeadLetters()), microseconds(now.Add(-age))
	for moment, letter := "-infinity", int64(math.MinInt64); ; {
		var read, gone int64
		err := pace(ctx, func(ctx context.Context) error {
			return a.writeByIndex(ctx, func(tx *sql.Tx) error {
				return tx.QueryRowContext(ctx, query, moment, letter, cutoff, retentionBatch).Scan(&read, &gone, &moment, &letter)
			})
		})
		if err != nil {
			return deleted, fmt.Errorf("forwarder: retention in %s: %w", a.schema.DeadLetters(), err)
		}
		deleted += gone
		if read < retentionBatch {
			return deleted, nil
		}
	}
}

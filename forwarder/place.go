package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/lib/pq"
)

// ErrNoPlace says that a dead letter which blocks its unit cannot go back in front of what
// waits for it: its seq is taken, as after TRUNCATE … RESTART IDENTITY, and no lower one is
// free. It stays where it is. There will be room once older rows are deleted; or set its
// blocks to false, and it goes to the end of its unit.
var ErrNoPlace = errors.New("forwarder: no seq is free in front of what waits for the dead letter")

// placesRead bounds how many index entries are read to find a seq that is free.
const placesRead = 100_000

// places are the seqs of dead letters that go back to where they were, and the others.
type places struct {
	letters, seqs pq.Int64Array
	misfits       []int64 // in the order of their seqs
}

// newer are rows of a dead letter's unit that were written after it had died. If the seqs
// have not begun anew, theirs are higher.
const newer = `o.unit_hash = d.unit_hash AND o.next_attempt_at IS NOT NULL AND o.created_at > d.dead_at`

func (a *Admin) findPlaces(ctx context.Context, tx *sql.Tx, locked blockingLetters) (found places, err error) {
	outbox := a.schema.Outbox()
	taken := map[int64]bool{}
	err = readAll(ctx, tx, `SELECT d.dead_letter_id, d.seq, d.seq > 0
				AND NOT EXISTS (SELECT FROM `+outbox+` AS o WHERE o.seq = d.seq)
				AND NOT EXISTS (SELECT FROM `+outbox+` AS o WHERE `+newer+` AND o.seq < d.seq)
			FROM `+a.schema.DeadLetters()+` AS d
			WHERE d.dead_letter_id = ANY ($1::bigint[])
			ORDER BY d.seq, d.dead_letter_id`, func(rows *sql.Rows) error {
		var (
			letter, seq int64
			fits        bool
		)
		if err := rows.Scan(&letter, &seq, &fits); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}
		if !fits || taken[seq] {
			found.misfits = append(found.misfits, letter)
			return nil
		}
		taken[seq] = true
		found.letters, found.seqs = append(found.letters, letter), append(found.seqs, seq)
		return nil
	}, locked.letters)
	if err != nil {
		return found, fmt.Errorf("look for places: %w", err)
	}
	return found, nil
}

// makePlace finds the highest free seq below the row that has the dead letter's, and below
// all newer rows of its unit. It is above 0: claims begin there.
func (a *Admin) makePlace(ctx context.Context, tx *sql.Tx, letter int64) (seq int64, err error) {
	outbox := a.schema.Outbox()
	var found sql.Null[int64]
	err = tx.QueryRowContext(ctx, `WITH bound AS (
			SELECT least(d.seq, (SELECT min(o.seq) FROM `+outbox+` AS o WHERE `+newer+`)) AS seq
			FROM `+a.schema.DeadLetters()+` AS d WHERE d.dead_letter_id = $1::bigint
		), below AS (
			SELECT n.seq, lag(n.seq) OVER (ORDER BY n.seq) AS previous
			FROM (
				SELECT o.seq FROM `+outbox+` AS o WHERE o.seq <= (SELECT seq FROM bound)
				ORDER BY o.seq DESC LIMIT $2::integer
			) AS n
		)
		SELECT coalesce(
			(SELECT max(seq) - 1 FROM below WHERE previous < seq - 1),
			(SELECT min(o.seq) - 1 FROM `+outbox+` AS o))`, letter, placesRead).Scan(&found)
	if err != nil {
		return 0, fmt.Errorf("make a place: %w", err)
	}
	if found.V < 1 {
		return 0, fmt.Errorf("%w: it is dead letter %d", ErrNoPlace, letter)
	}
	return found.V, nil
}

package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/lib/pq"
)

// Replay puts the dead letters that the filter selects back into the outbox, for running
// forwarders to send, and returns how many. Messages keep their ids, so that an inbox that
// has handled one drops it, and start with no attempt spent.
//
// A dead letter that blocks its unit goes back to its own place, before everything that
// waits for it; several of a unit keep their order. While another one of the unit still
// blocks it, it waits for that one to be replayed or discarded too. Any other goes to the
// end of its unit, behind what was written meanwhile: those of a unit are sent in the order
// in which they died.
//
// It works in transactions of at most 1000, and waits where a forwarder is sending from the
// lane of a unit that is blocked: usually for the time of a batch, at most a minute (then
// the error has SQLSTATE 55P03). Each dead letter is replayed once, whoever else replays
// at the same time. What dies after it has begun is left alone. After an error, the number
// returned is how many are back in the outbox; call it again for the others.
//
// Errors wrap ErrEmptyFilter, ErrInvalidFilter or ErrNoPlace, or come from the database.
func (a *Admin) Replay(ctx context.Context, f Filter, opts BulkOptions) (replayed int64, err error) {
	replayed, err = a.bulk(ctx, f, opts, a.replayToEnd, a.replayInPlace)
	if err != nil {
		return replayed, fmt.Errorf("forwarder: replay: %w", err)
	}
	return replayed, nil
}

// replayedColumns go from a dead letter to its row.
const replayedColumns = `id, destination, partition_key, payload, payload_bytes, metadata, created_at`

// replayToEnd gives the messages new seqs. Marks do not pass them: like a producer's, the
// INSERT holds its lock on the table until they are visible.
func (a *Admin) replayToEnd(ctx context.Context, tx *sql.Tx, letters pq.Int64Array) (int64, error) {
	return a.affect(ctx, tx, `WITH chosen AS (
			SELECT dead_letter_id FROM `+a.schema.DeadLetters()+`
			WHERE dead_letter_id = ANY ($1::bigint[]) AND NOT blocks
			ORDER BY dead_letter_id
			FOR UPDATE
		), gone AS (
			DELETE FROM `+a.schema.DeadLetters()+`
			WHERE dead_letter_id IN (SELECT dead_letter_id FROM chosen)
			RETURNING dead_letter_id, `+replayedColumns+`
		)
		INSERT INTO `+a.schema.Outbox()+` (`+replayedColumns+`)
		SELECT `+replayedColumns+` FROM gone ORDER BY dead_letter_id`, letters)
}

// replayInPlace holds the lane's lock.
func (a *Admin) replayInPlace(ctx context.Context, tx *sql.Tx, letters pq.Int64Array) (int64, error) {
	locked, err := a.lockBlocking(ctx, tx, letters)
	if err != nil {
		return 0, err
	}
	places, err := a.findPlaces(ctx, tx, locked)
	if err != nil {
		return 0, err
	}
	// Those that fit go first: they take no place that is looked for.
	replayed, err := a.putInPlace(ctx, tx, places.letters, places.seqs)
	if err != nil {
		return 0, err
	}
	// The last of a unit first, each before the one that came before it.
	for _, letter := range slices.Backward(places.misfits) {
		seq, err := a.makePlace(ctx, tx, letter)
		if err != nil {
			return 0, err
		}
		n, err := a.putInPlace(ctx, tx, pq.Int64Array{letter}, pq.Int64Array{seq})
		if err != nil {
			return 0, err
		}
		replayed += n
	}
	return replayed, a.wakeUnits(ctx, tx, locked.units)
}

// blockingLetters are locked, in the order of their seqs.
type blockingLetters struct {
	letters, units pq.Int64Array
}

func (a *Admin) lockBlocking(ctx context.Context, tx *sql.Tx, letters pq.Int64Array) (locked blockingLetters, err error) {
	// Locked in one order everywhere, so that nobody deadlocks.
	err = readAll(ctx, tx, `SELECT dead_letter_id, unit_hash FROM `+a.schema.DeadLetters()+`
		WHERE dead_letter_id = ANY ($1::bigint[]) AND blocks
		ORDER BY dead_letter_id
		FOR UPDATE`, func(rows *sql.Rows) error {
		var letter, unit int64
		err := rows.Scan(&letter, &unit)
		locked.letters, locked.units = append(locked.letters, letter), append(locked.units, unit)
		return err //nolint:wrapcheck // wrapped below
	}, letters)
	if err != nil {
		return locked, fmt.Errorf("lock dead letters: %w", err)
	}
	return locked, nil
}

// putInPlace moves dead letters to where they were. They wait, until wakeUnits.
func (a *Admin) putInPlace(ctx context.Context, tx *sql.Tx, letters, seqs pq.Int64Array) (int64, error) {
	if len(letters) == 0 {
		return 0, nil
	}
	return a.affect(ctx, tx, `WITH place AS (
			SELECT letter, seq FROM ROWS FROM (unnest($1::bigint[]), unnest($2::bigint[])) AS p (letter, seq)
		), gone AS (
			DELETE FROM `+a.schema.DeadLetters()+`
			WHERE dead_letter_id IN (SELECT letter FROM place)
			RETURNING dead_letter_id, `+replayedColumns+`
		)
		INSERT INTO `+a.schema.Outbox()+` (seq, next_attempt_at, `+replayedColumns+`) OVERRIDING SYSTEM VALUE
		SELECT place.seq, 'infinity', `+replayedColumns+` FROM gone JOIN place ON letter = dead_letter_id`, letters, seqs)
}

func (a *Admin) affect(ctx context.Context, tx *sql.Tx, statement string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err //nolint:wrapcheck // Replay and Discard wrap it
	}
	return result.RowsAffected() //nolint:wrapcheck // as above
}

package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DeadLetter is a message that was given up.
type DeadLetter struct {
	// ID is the number of the dead letter. No other of this outbox ever has it; a message
	// that is replayed and dies again gets a new one.
	ID int64
	// EventID is the message's id.
	EventID      string
	Destination  string
	PartitionKey string
	// Payload is nil where it was left out (Filter.OmitPayload).
	Payload  []byte
	Metadata message.Metadata
	// CreatedAt is when the producer's transaction began, DeadAt when the message was given
	// up, by the database's clock.
	CreatedAt, DeadAt time.Time
	// Attempts is how often it was tried.
	Attempts int
	// Error is what was wrong in the end, ErrorGroup the same without what differs from
	// message to message.
	Error, ErrorGroup string
	// Blocks says that its unit stands still until it is replayed or discarded.
	Blocks bool
}

const (
	// deadLettersPage and deadLettersBytes bound what DeadLetters holds in memory.
	deadLettersPage  = 200
	deadLettersBytes = 8 << 20
)

// deadLettersQuery returns the next of them, as many as fit: $7 the last one before, $8 the
// last one of all, $9 how many, $10 how many bytes of payload, $11 whether to leave them
// out. The sizes are known before any payload is read from where Postgres stores it.
func deadLettersQuery(table string) string {
	const columns = `dead_letter_id, id, destination, partition_key, payload, payload_bytes, metadata,
		created_at, dead_at, attempts, error, error_group, blocks`
	return `WITH page AS (
			SELECT ` + columns + `,
				sum(CASE WHEN $11::boolean THEN 0 ELSE coalesce(octet_length(payload), octet_length(payload_bytes)) END)
					OVER (ORDER BY dead_letter_id) AS total,
				row_number() OVER (ORDER BY dead_letter_id) AS place
			FROM (
				SELECT ` + columns + ` FROM ` + table + `
				WHERE ` + filterCondition + ` AND dead_letter_id > $7::bigint AND dead_letter_id <= $8::bigint
				ORDER BY dead_letter_id LIMIT $9::integer
			) AS next
		)
		SELECT dead_letter_id, id, destination, coalesce(nullif(partition_key, ''), id),
			CASE WHEN NOT $11::boolean THEN payload END, CASE WHEN NOT $11::boolean THEN payload_bytes END, metadata::text,
			` + asText(`created_at`) + `, ` + asText(`dead_at`) + `, attempts, error, error_group, blocks
		FROM page WHERE place = 1 OR total <= $10::bigint
		ORDER BY dead_letter_id`
}

// lastDeadLetter is the newest at the moment. What dies later, perhaps because it was
// replayed and failed again, is left alone: otherwise there would be no end.
func (a *Admin) lastDeadLetter(ctx context.Context, tx *sql.Tx) (last int64, err error) {
	err = tx.QueryRowContext(ctx, `SELECT coalesce(max(dead_letter_id), 0) FROM `+a.schema.DeadLetters()).Scan(&last)
	return last, err //nolint:wrapcheck // the caller wraps it
}

// DeadLetters goes through the dead letters that the filter selects, oldest first, with
// their payloads unless Filter.OmitPayload is set. It reads a few at a time, at most 200
// and 8 MiB of payloads (or a single larger one), and holds no connection in between, so
// that the loop may replay or discard what it sees. Dead letters that come after it has
// begun are left out. An error, of the database or one that wraps ErrInvalidFilter, comes
// once, with a zero DeadLetter, and is the end.
func (a *Admin) DeadLetters(ctx context.Context, f Filter) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		if err := f.validate(); err != nil {
			yield(DeadLetter{}, err)
			return
		}
		pages := deadLetterPages{after: math.MinInt64}
		for !pages.done {
			page, err := a.nextDeadLetters(ctx, f, &pages)
			if err != nil {
				yield(DeadLetter{}, fmt.Errorf("forwarder: read %s: %w", a.schema.DeadLetters(), err))
				return
			}
			for _, letter := range page {
				if !yield(letter, nil) {
					return
				}
			}
		}
	}
}

// deadLetterPages says where the next page begins.
type deadLetterPages struct {
	after, last int64
	begun, done bool
}

func (a *Admin) nextDeadLetters(ctx context.Context, f Filter, pages *deadLetterPages) (page []DeadLetter, err error) {
	err = a.read(ctx, func(tx *sql.Tx) error {
		if !pages.begun {
			if pages.last, err = a.lastDeadLetter(ctx, tx); err != nil {
				return err
			}
		}
		args := f.filterArgs(pages.after, pages.last, deadLettersPage, deadLettersBytes, f.OmitPayload)
		return readAll(ctx, tx, deadLettersQuery(a.schema.DeadLetters()), func(rows *sql.Rows) error {
			letter, err := scanDeadLetter(rows)
			page = append(page, letter)
			return err
		}, args...)
	})
	pages.begun = true
	if len(page) == 0 {
		pages.done = true
	} else {
		pages.after = page[len(page)-1].ID
	}
	return page, err
}

func scanDeadLetter(rows *sql.Rows) (letter DeadLetter, err error) {
	var (
		text            sql.NullString
		metadata        string
		created, deadAt sql.NullString
	)
	err = rows.Scan(&letter.ID, &letter.EventID, &letter.Destination, &letter.PartitionKey, &text, &letter.Payload, &metadata,
		&created, &deadAt, &letter.Attempts, &letter.Error, &letter.ErrorGroup, &letter.Blocks)
	if err != nil {
		return DeadLetter{}, err //nolint:wrapcheck // DeadLetters wraps it
	}
	if text.Valid {
		letter.Payload = []byte(text.String)
	}
	letter.CreatedAt, letter.DeadAt = textTime(created), textTime(deadAt)
	if letter.Metadata, err = decodeMetadata([]byte(metadata)); err != nil {
		// What cannot be read may be why it died.
		letter.Metadata, err = message.Metadata{}, nil
	}
	return letter, err
}

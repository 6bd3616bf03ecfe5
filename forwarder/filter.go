package forwarder

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lib/pq"
)

var (
	// ErrEmptyFilter says that Replay or Discard was called with a Filter that selects
	// everything without saying so: set All. Nothing was done.
	ErrEmptyFilter = errors.New("forwarder: the filter is empty, set All to select every dead letter")
	// ErrInvalidFilter says that a Filter contradicts itself, or holds what no dead letter
	// can have. Nothing was done.
	ErrInvalidFilter = errors.New("forwarder: invalid filter")
)

// Filter selects dead letters: those that meet all of its conditions. To Admin.DeadLetters
// and Admin.DeadLetterGroups the zero value is every dead letter; Admin.Replay and
// Admin.Discard refuse it, and ask for All.
type Filter struct {
	// Destination is that of the message. Empty: any.
	Destination string
	// From and Until say when it died, by the database's clock: at From or later, and
	// before Until. Zero: any time.
	From, Until time.Time
	// IDs are numbers of dead letters (DeadLetter.ID). Nil: any; empty, but not nil: none.
	IDs []int64
	// EventIDs are ids of messages (DeadLetter.EventID). Nil: any; empty, but not nil:
	// none.
	EventIDs []string
	// ErrorGroup is the whole of DeadLetter.ErrorGroup. Empty: any.
	ErrorGroup string
	// All selects every dead letter. It does not go with any other condition.
	All bool
	// OmitPayload has Admin.DeadLetters leave the payloads in the database. It is no
	// condition.
	OmitPayload bool
}

// isEmpty says whether there is no condition.
func (f Filter) isEmpty() bool {
	return f.Destination == "" && f.From.IsZero() && f.Until.IsZero() && f.IDs == nil && f.EventIDs == nil && f.ErrorGroup == ""
}

func (f Filter) validate() error {
	if f.All && !f.isEmpty() {
		return fmt.Errorf("%w: All does not go with another condition", ErrInvalidFilter)
	}
	if !f.From.IsZero() && !f.Until.IsZero() && !f.From.Before(f.Until) {
		return fmt.Errorf("%w: From (%s) is not before Until (%s)", ErrInvalidFilter, f.From, f.Until)
	}
	for field, moment := range map[string]time.Time{"From": f.From, "Until": f.Until} {
		if year := moment.UTC().Year(); year < 1 || year > 9999 {
			return fmt.Errorf("%w: %s is in the year %d", ErrInvalidFilter, field, year)
		}
	}
	for field, text := range f.texts {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("%w: %s %q is no text that Postgres can hold", ErrInvalidFilter, field, text)
		}
	}
	return nil
}

// texts goes through all the texts, with the names of their fields.
func (f Filter) texts(yield func(field, text string) bool) {
	if !yield("Destination", f.Destination) || !yield("ErrorGroup", f.ErrorGroup) {
		return
	}
	for _, id := range f.EventIDs {
		if !yield("EventIDs", id) {
			return
		}
	}
}

// validateBulk is validate for what changes many at once.
func (f Filter) validateBulk() error {
	if f.isEmpty() && !f.All {
		return ErrEmptyFilter
	}
	return f.validate()
}

// filterCondition takes filterArgs as $1 to $6.
const filterCondition = `($1::text = '' OR destination = $1::text)
	AND ($2::bigint IS NULL OR dead_at >= timestamptz 'epoch' + interval '1 microsecond' * $2::bigint::float8)
	AND ($3::bigint IS NULL OR dead_at < timestamptz 'epoch' + interval '1 microsecond' * $3::bigint::float8)
	AND ($4::bigint[] IS NULL OR dead_letter_id = ANY ($4::bigint[]))
	AND ($5::text[] IS NULL OR id = ANY ($5::text[]))
	AND ($6::text = '' OR error_group = $6::text)`

// filterArgs are the arguments of filterCondition, followed by more.
func (f Filter) filterArgs(more ...any) []any {
	return append([]any{
		f.Destination, microseconds(f.From), microseconds(f.Until),
		pq.Int64Array(f.IDs), pq.StringArray(f.EventIDs), f.ErrorGroup,
	}, more...)
}

// microseconds is a moment in Postgres' precision, whatever the session's formats are. It
// is rounded up: a whole microsecond is before a moment if and only if it is before the
// next whole one.
func microseconds(moment time.Time) sql.Null[int64] {
	if moment.IsZero() {
		return sql.Null[int64]{}
	}
	return sql.Null[int64]{V: moment.Add(time.Microsecond - 1).UnixMicro(), Valid: true}
}

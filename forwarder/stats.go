package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Stats is what an outbox looks like at a moment: what waits, for how long and why, what
// was given up, and what is away.
type Stats struct {
	// TakenAt is the moment, by the database's clock.
	TakenAt time.Time

	// Backlog is how many rows are not published.
	Backlog Count
	// OldestAge is the age of the oldest of them, since its producer's transaction began.
	// Zero: there is none.
	OldestAge time.Duration
	// Due is how many of the backlog can be sent at once. If it stays high, forwarders do
	// not run, do not keep up, or the destination is Away.
	Due Count
	// NotDue is how many failed and wait for the time of their next attempt.
	NotDue Count
	// Held is how many wait behind another message of their unit, which failed, or behind a
	// dead letter that blocks it.
	Held Count
	// Destinations divides the backlog, the largest first; at most 100.
	Destinations []DestinationStats

	// Failing says why messages are being tried again, the most frequent cause first: of
	// the 1000 that are tried next, in at most 20 groups.
	Failing []FailingGroup

	// DeadLetters is how many messages were given up.
	DeadLetters Count
	// DeadLetterGroups are their causes, the most frequent first: of the newest 100,000, in
	// at most 20 groups.
	DeadLetterGroups []DeadLetterGroup
	// BlockedUnits is how many units stand still because of a dead letter.
	BlockedUnits Count
	// Blocked are some of them, at most 100.
	Blocked []BlockedUnit

	// Away are brokers and destinations that cannot be reached, the longest first; at most
	// 100. Their messages wait, and spend no attempt.
	Away []Away
}

// Count is a number of rows, or of units.
type Count struct {
	Rows int64
	// Estimated says that there are too many to count: Rows is an estimate from a sample.
	// It is false up to 100,000.
	Estimated bool
}

// DestinationStats is the part of a backlog that goes to one destination.
type DestinationStats struct {
	Destination string
	Backlog     Count
	OldestAge   time.Duration
}

// FailingGroup are messages of one destination that fail for one cause, and are tried
// again.
type FailingGroup struct {
	Destination string
	// ErrorGroup is their error without what differs from message to message.
	ErrorGroup string
	Count      int
	// MostAttempts is how often one of them has been tried.
	MostAttempts int
	// Example is the one that is tried next.
	Example FailingMessage
}

// FailingMessage is the first of a unit that waits for it.
type FailingMessage struct {
	// Seq is its row.
	Seq                   int64
	EventID, PartitionKey string
	NextAttemptAt         time.Time
	Error                 string
}

// BlockedUnit is a unit that stands still until its dead letters that block it are replayed
// or discarded.
type BlockedUnit struct {
	Destination, PartitionKey string
	// DeadLetterID is the first of them, for Filter.IDs.
	DeadLetterID int64
	EventID      string
	Error        string
	Since        time.Time
	// Held is how many messages wait for it. Above 1000 it is estimated, as 1001.
	Held Count
}

// Away is a broker or a destination that cannot be reached.
type Away struct {
	// Kind is "broker" or "destination".
	Kind string
	// Name is that of the destination or the broker; empty where there is but one broker.
	Name string
	// Since is when it was missed first. If TriedAt is long ago, no forwarder runs that
	// tries it.
	Since, TriedAt, NextTryAt time.Time
	Error                     string
}

const (
	// statsRows is how many rows of a table are counted, before the rest is estimated.
	statsRows = 100_000
	// statsStrata is how many places of a large table are looked at, and statsSample how
	// many rows at each.
	statsStrata = 250
	statsSample = 40

	statsFailing      = 1000
	statsHeld         = 1000
	statsGroups       = 20
	statsDestinations = 100
)

// indexSettings make every statement use the index that it is written for. The statistics
// of an outbox are those of an empty table, usually, and with them the planner would read
// and sort all of it.
const indexSettings = `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off;
	SET LOCAL max_parallel_workers_per_gather = 0`

// Stats looks at the outbox. It costs the same however long the backlog is: at most some
// 100,000 rows of each table are read, by their indexes, no payloads, and what goes beyond
// is estimated (Count.Estimated). Up to that size everything is exact. Call it every few
// seconds or minutes; it takes no locks that forwarders or producers wait for, and works
// on a standby.
//
// Of a larger table in which most rows are published, and kept (Settlement MarkPublished),
// single unpublished rows far from its ends may be missed; failed ones are not. Errors come
// from the database.
func (a *Admin) Stats(ctx context.Context) (stats Stats, err error) {
	err = a.read(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, indexSettings); err != nil {
			return fmt.Errorf("settings: %w", err)
		}
		for _, read := range []func(context.Context, *sql.Tx, *Stats) error{
			a.readClock, a.readBacklog, a.readWaiting, a.readFailing, a.readDead, a.readBlocked, a.readAway,
		} {
			if err := read(ctx, tx, &stats); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Stats{}, fmt.Errorf("forwarder: stats of %s: %w", a.schema.Outbox(), err)
	}
	return stats, nil
}

func (a *Admin) readClock(ctx context.Context, tx *sql.Tx, stats *Stats) error {
	var now sql.NullString
	if err := tx.QueryRowContext(ctx, `SELECT `+asText(`clock_timestamp()`)).Scan(&now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	stats.TakenAt = textTime(now)
	return nil
}

// age is not negative: producers may set created_at.
func (s *Stats) age(oldest time.Time) time.Duration {
	if oldest.IsZero() {
		return 0
	}
	return max(0, s.TakenAt.Sub(oldest))
}

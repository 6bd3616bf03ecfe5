package forwarder

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watermill-outbox/outbox/schema"
)

// Ordering says in which order a forwarder publishes. It may be changed while rows wait, and
// differ from replica to replica in a rolling deployment: nothing is lost, and PerKey holds for
// what is sent once no replica has None any more.
type Ordering string

const (
	// PerKey publishes the messages of one unit (destination, partition key) in the
	// order of their commits. All replicas of an outbox must use it for it to hold.
	PerKey Ordering = "per_key"
	// None publishes in any order; replicas and workers share even a single unit. No row waits
	// for another, nor for a dead letter that blocks its unit: what a forwarder with PerKey has
	// held back is let go on, within a minute or so, or longer where millions wait.
	None Ordering = "none"
)

// Settlement says what becomes of a row once the broker has confirmed its message.
type Settlement string

const (
	// Delete removes the row.
	Delete Settlement = "delete"
	// MarkPublished keeps the row and sets its published_at.
	MarkPublished Settlement = "mark_published"
)

// DeadLetterPolicy says what becomes of a unit when one of its messages is moved to the
// dead letters. It holds for what dies under it: changed to Continue, it leaves units blocked
// that are (Stats lists them) until an operator replays or discards their dead letters, or sets
// their blocks to false; changed to Block, it stops no unit that has gone on. So replicas may
// differ in it for a while.
type DeadLetterPolicy string

const (
	// Continue lets the unit's later messages go on without it.
	Continue DeadLetterPolicy = "continue"
	// Block holds the unit's later messages back until an operator replays or discards the
	// dead letter, see Admin.
	Block DeadLetterPolicy = "block"
)

// ErrInvalidConfig says that a Config cannot work; the error that wraps it names the
// field, its value and what is allowed.
var ErrInvalidConfig = errors.New("forwarder: invalid config")

// Config configures a Forwarder. The zero value works.
type Config struct {
	// Schema names the outbox table. Default: public.outbox.
	Schema schema.Postgres
	// Ordering is PerKey or None. Default: PerKey.
	Ordering Ordering
	// Settlement is Delete or MarkPublished. Default: Delete.
	Settlement Settlement
	// Workers is how many batches are in flight at once, each on a database connection
	// of its own: the pool must offer as many, and keep as many when idle
	// (SetMaxIdleConns; database/sql's default is 2). One more is used for a moment every
	// 10 seconds, one for each broker of which something is away, and one while a unit has
	// so many more rows than others that a worker of its own sends them. Default: 2.
	Workers int
	// BatchSize is the most rows that a worker claims at once; so many messages can be
	// sent twice when it is killed. Default: 500.
	BatchSize int
	// BatchBytes bounds the payloads of a batch; a single larger message goes alone.
	// Default: 8 MiB.
	BatchBytes int
	// PollInterval is the longest time between two looks for rows. After one was found
	// they are made every 2 ms, and less often the longer there is none. Default: 100 ms.
	PollInterval time.Duration
	// ListenDSN leads to the same database, and lets the forwarder sleep while there is
	// nothing to do: whoever inserts a row wakes it at once. It takes two connections of its
	// own with lib/pq, to the database itself or to a pooler in session mode. A forwarder
	// that sleeps looks every second, or every PollInterval if that is longer. Default: none.
	ListenDSN string
	// Source is where new rows come from, in place of the table: see the package wal. What has
	// to wait is left in the table, and claimed there. Replicas without it may run beside
	// those that have it. ListenDSN is of no use with it. Default: none, the table is read.
	Source Source
	// PublishTimeout bounds the publishing of one batch. Where a broker is slower, batches
	// become smaller, down to a single message, which may then take up to four times as
	// long. The database frees the rows of a replica that is gone without a word 5 s after
	// that. Default: 30 s.
	PublishTimeout time.Duration
	// DatabaseTimeout bounds each statement. Default: 10 s.
	DatabaseTimeout time.Duration
	// RetryInitial is the wait after a first failure; it doubles with each further one,
	// with jitter. Default: 500 ms.
	RetryInitial time.Duration
	// RetryMax is the longest wait between two attempts. Default: 30 s.
	RetryMax time.Duration
	// MaxAttempts is how many attempts a message that is refused has before it is moved to
	// the dead letters. What is due to a broker or a destination that is away spends none.
	// Default: 15, which with the other defaults takes about 5 minutes.
	MaxAttempts int
	// OnDeadLetter is Continue or Block. Block needs Ordering PerKey. Default: Continue.
	OnDeadLetter DeadLetterPolicy
	// AfterUnavailable moves the messages of a destination to the dead letters once it has
	// been away for so long, as far as the forwarders of this outbox have seen. Default: 0,
	// they wait for ever.
	AfterUnavailable time.Duration
	// Retention says how long what is done with is kept. Default: for ever.
	Retention Retention
}

func (c *Config) setDefaults() {
	setDefault(&c.Ordering, PerKey)
	setDefault(&c.Settlement, Delete)
	setDefault(&c.Workers, 2)
	setDefault(&c.BatchSize, 500)
	setDefault(&c.BatchBytes, 8<<20)
	setDefault(&c.PollInterval, 100*time.Millisecond)
	setDefault(&c.PublishTimeout, 30*time.Second)
	setDefault(&c.DatabaseTimeout, 10*time.Second)
	setDefault(&c.RetryInitial, 500*time.Millisecond)
	setDefault(&c.RetryMax, 30*time.Second)
	setDefault(&c.MaxAttempts, 15)
	setDefault(&c.OnDeadLetter, Continue)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every field that cannot work, all at once. Zero values stand for
// their defaults. The error wraps ErrInvalidConfig or schema.ErrInvalidName.
func (c Config) Validate() error {
	c.setDefaults()
	errs := []error{
		c.Schema.Validate(),
		oneOf("Ordering", c.Ordering, PerKey, None),
		oneOf("Settlement", c.Settlement, Delete, MarkPublished),
		inRange("Workers", c.Workers, 1, 1024),
		inRange("BatchSize", c.BatchSize, 1, 100_000),
		inRange("BatchBytes", c.BatchBytes, 1, 1<<30),
		inRange("PollInterval", c.PollInterval, time.Millisecond, time.Hour),
		inRange("PublishTimeout", c.PublishTimeout, time.Millisecond, 24*time.Hour),
		inRange("DatabaseTimeout", c.DatabaseTimeout, time.Millisecond, time.Hour),
		inRange("RetryInitial", c.RetryInitial, time.Millisecond, time.Hour),
		inRange("RetryMax", c.RetryMax, c.RetryInitial, 24*time.Hour),
		inRange("MaxAttempts", c.MaxAttempts, 1, 1_000_000),
		oneOf("OnDeadLetter", c.OnDeadLetter, Continue, Block),
		inRange("AfterUnavailable", c.AfterUnavailable, 0, 10*365*24*time.Hour),
		c.Retention.validate(),
	}
	if c.OnDeadLetter == Block && c.Ordering == None {
		errs = append(errs, fmt.Errorf("%w: OnDeadLetter is %q, which needs Ordering %q", ErrInvalidConfig, Block, PerKey))
	}
	return errors.Join(errs...)
}

func oneOf[T ~string](field string, value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%w: %s is %q, allowed are %q", ErrInvalidConfig, field, value, allowed)
}

func inRange[T int | time.Duration](field string, value, low, high T) error {
	if value < low || value > high {
		return fmt.Errorf("%w: %s is %v, allowed is %v to %v", ErrInvalidConfig, field, value, low, high)
	}
	return nil
}

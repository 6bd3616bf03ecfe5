package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/schema"
)

const (
	seedVariable  = "LEDGER_SEED"
	scaleVariable = "LEDGER_SCALE"
)

// Config says what a run does. DSN, Schema, Broker and Destinations are required,
// everything else has a default.
type Config struct {
	// DSN leads to the database of writers, forwarders and consumer, Schema to the
	// migrated tables in it. The ledger makes tables of its own beside them.
	DSN    string
	Schema schema.Postgres
	// WriterDSN, ForwarderDSN and ConsumerDSN are where that party connects instead, as
	// where something lies in between. ForwarderDSN is asked for each replica that starts,
	// by its number. The ledger itself looks through DSN. Default: DSN.
	WriterDSN    string
	ForwarderDSN func(replica int) string
	ConsumerDSN  string

	Broker Broker
	// Destinations exist already. Each key belongs to one of them.
	Destinations []string

	// Replicas is how many forwarder processes run at a time. Default: 1.
	Replicas  int
	Forwarder ForwarderConfig
	// SlotOf is asked for each replica that starts, by its number, which slot it reads.
	// Default: Forwarder.Slot.
	SlotOf func(replica int) string

	// Kills is how many replicas are killed at random moments, each replaced by a new
	// one. SelfKills is how many kill themselves between publish and settle, so that
	// duplicates are certain.
	Kills     int
	SelfKills int

	// Faults does what goes wrong beside the writers, who write until it returns. With
	// it, writers put up with a database that fails them. Kills come before it.
	Faults func(ctx context.Context, c *Control) error

	// Writers write until all kills are done, and at least Transactions in total.
	// Default: 8 writers, 1000 transactions, 20 keys.
	Writers      int
	Transactions int
	Keys         int
	// Pace is the mean pause of a writer between two transactions. Default: 5 ms.
	Pace time.Duration
	// InsertDelay makes each insert into the outbox sleep up to so long after its seq
	// was drawn, so that the order of seq and of commits cross between keys.
	InsertDelay time.Duration

	// Patience bounds each wait: for a replica to start, for the outbox to drain, for
	// the consumer to catch up. Default: 60 s.
	Patience time.Duration

	// Seed is what random choices follow from. Default: LEDGER_SEED, else any.
	Seed uint64
	// Scale multiplies Transactions and Kills. Default: LEDGER_SCALE, else 1.
	Scale float64
}

// ForwarderConfig is the part of forwarder.Config that a ledger's replicas vary.
type ForwarderConfig struct {
	Ordering     forwarder.Ordering
	Settlement   forwarder.Settlement
	OnDeadLetter forwarder.DeadLetterPolicy
	Workers      int
	BatchSize    int
	PollInterval time.Duration
	// Slot has new rows come from the write-ahead log, through the slot and the publication
	// of that name. Empty: the table is read.
	Slot string
	// ListenDSN has replicas sleep.
	ListenDSN string

	// Their zero values are left to the forwarder's own defaults.
	MaxAttempts     int
	PublishTimeout  time.Duration
	DatabaseTimeout time.Duration
	RetryInitial    time.Duration
	RetryMax        time.Duration
}

// unsettled is the most that one process can have published and not settled.
func (c ForwarderConfig) unsettled() int { return c.Workers * c.BatchSize }

func (c *Config) setDefaults() error {
	setDefault(&c.Replicas, 1)
	setDefault(&c.Forwarder.Ordering, forwarder.PerKey)
	setDefault(&c.Forwarder.Settlement, forwarder.Delete)
	setDefault(&c.Forwarder.OnDeadLetter, forwarder.Continue)
	setDefault(&c.Forwarder.Workers, 2)
	setDefault(&c.Forwarder.BatchSize, 20)
	setDefault(&c.Forwarder.PollInterval, 10*time.Millisecond)
	setDefault(&c.Writers, 8)
	setDefault(&c.Transactions, 1000)
	setDefault(&c.Keys, 20)
	setDefault(&c.Pace, 5*time.Millisecond)
	setDefault(&c.Patience, time.Minute)
	setDefault(&c.WriterDSN, c.DSN)
	setDefault(&c.ConsumerDSN, c.DSN)
	if c.ForwarderDSN == nil {
		c.ForwarderDSN = func(int) string { return c.DSN }
	}
	if c.SlotOf == nil {
		c.SlotOf = func(int) string { return c.Forwarder.Slot }
	}
	var err error
	if c.Seed, err = seed(c.Seed); err != nil {
		return err
	}
	if c.Scale, err = scale(c.Scale); err != nil {
		return err
	}
	c.Transactions = int(math.Ceil(float64(c.Transactions) * c.Scale))
	c.Kills = int(math.Ceil(float64(c.Kills) * c.Scale))
	return nil
}

func seed(configured uint64) (uint64, error) {
	if configured != 0 {
		return configured, nil
	}
	text, given := os.LookupEnv(seedVariable)
	if !given {
		return 1 + uint64(rand.Uint32()), nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("ledger: %s: %w", seedVariable, err)
	}
	return seed, nil
}

func scale(configured float64) (float64, error) {
	if configured != 0 {
		return configured, nil
	}
	text, given := os.LookupEnv(scaleVariable)
	if !given {
		return 1, nil
	}
	scale, err := strconv.ParseFloat(text, 64)
	if err != nil || scale <= 0 {
		return 0, fmt.Errorf("ledger: %s is %q, it must be a positive number", scaleVariable, text)
	}
	return scale, nil
}

func (c Config) validate() error {
	switch {
	case c.DSN == "":
		return errors.New("ledger: DSN is required")
	case c.Broker == nil || len(c.Destinations) == 0:
		return errors.New("ledger: Broker and Destinations are required")
	case c.SelfKills > c.Replicas:
		return fmt.Errorf("ledger: SelfKills is %d, more than the %d Replicas", c.SelfKills, c.Replicas)
	}
	return nil
}

// random returns a source of its own for each part of a run, so that goroutines do
// not change each other's choices.
func (c Config) random(part uint64) *rand.Rand { return rand.New(rand.NewPCG(c.Seed, part)) }

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

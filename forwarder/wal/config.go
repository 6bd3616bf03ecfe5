package wal

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-outbox/outbox/schema"
)

// ErrInvalidConfig says that a Config cannot work; the error that wraps it names the field and what is
// allowed.
var ErrInvalidConfig = errors.New("wal: invalid config")

// Config configures a Source. ReplicationDSN is required.
type Config struct {
	// Schema names the outbox table. Default: public.outbox.
	Schema schema.Postgres
	// ReplicationDSN leads to the primary, without a pooler between, as a role with
	// REPLICATION: a URL, or key=value. A replica has one connection with it.
	ReplicationDSN string
	// Slot is the replication slot: lower case letters, digits and _, at most 63. All
	// replicas of a forwarder have the same, and one of them reads it. It is made if it is
	// not there. Default: one that belongs to the table by the database's name and its own.
	Slot string
	// Publication is that of the table's inserts. It is made if it is not there. At most 63
	// bytes. Default: named as the default slot.
	Publication string
	// QueueBytes is about how much is read ahead; beyond it, the server has to wait. A single
	// row may be larger. Default: 16 MiB.
	QueueBytes int
	// MaxRetainedWAL is how many bytes of the write-ahead log the slot may keep from being removed,
	// as long as a forwarder runs. Beyond it, one of them drops the slot, and the table is
	// read until Source.Resume is called; at half of it there is a warning. The slot keeps what was
	// written since the oldest transaction that was open when what is in flight was written: also
	// a transaction that is open for long has it keep much. Default: 1 GiB.
	MaxRetainedWAL int64
	// OnAlarm is called when the slot keeps more than half of MaxRetainedWAL, and when it
	// is suspended; not again before it keeps less, or is resumed. In each replica. It must
	// not block. Default: none, it is logged.
	OnAlarm func(Status)
	// AcceptUnboundedWAL has it work where max_slot_wal_keep_size is -1. Then nothing keeps
	// the slot from filling the primary's disk while no forwarder runs, or a broker is away.
	// Default: false.
	AcceptUnboundedWAL bool
}

const (
	defaultQueueBytes     = 16 << 20
	defaultMaxRetainedWAL = 1 << 30
	// leastRetainedWAL is two segments of the log, of which a slot keeps whole ones.
	leastRetainedWAL = 32 << 20
)

func (c *Config) setDefaults() {
	own := fmt.Sprint("watermill_outbox_", nameHash(databaseOf(c.ReplicationDSN)+"."+c.Schema.Outbox()))
	if c.Slot == "" {
		c.Slot = own
	}
	if c.Publication == "" {
		c.Publication = own
	}
	if c.MaxRetainedWAL == 0 {
		c.MaxRetainedWAL = defaultMaxRetainedWAL
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = defaultQueueBytes
	}
}

// databaseOf is the database's name: a server has only one slot of a name.
func databaseOf(dsn string) string {
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return "" // Validate says so
	}
	if config.Database == "" { // the server's default
		return quote(config.User)
	}
	return quote(config.Database)
}

func nameHash(name string) uint32 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint32(sum[:4])
}

// slotName is Postgres' rule (manual, "Replication Slots").
var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// Validate reports every field that cannot work, all at once. The error wraps ErrInvalidConfig or
// schema.ErrInvalidName. It does not show the ReplicationDSN.
func (c Config) Validate() error {
	c.setDefaults()
	errs := []error{c.Schema.Validate()}
	if c.ReplicationDSN == "" {
		errs = append(errs, fmt.Errorf("%w: ReplicationDSN is empty", ErrInvalidConfig))
	} else if _, err := pgconn.ParseConfig(c.ReplicationDSN); err != nil {
		errs = append(errs, fmt.Errorf("%w: ReplicationDSN is neither a URL nor key=value", ErrInvalidConfig))
	}
	if !slotName.MatchString(c.Slot) {
		errs = append(errs, fmt.Errorf("%w: Slot is %q, allowed are 1 to 63 of a-z, 0-9 and _", ErrInvalidConfig, c.Slot))
	}
	const longest = 63
	if len(c.Publication) > longest {
		errs = append(errs, fmt.Errorf("%w: Publication %q has %d bytes, allowed are %d",
			ErrInvalidConfig, c.Publication, len(c.Publication), longest))
	}
	if c.MaxRetainedWAL < leastRetainedWAL {
		errs = append(errs, fmt.Errorf("%w: MaxRetainedWAL is %d, allowed is %d and more",
			ErrInvalidConfig, c.MaxRetainedWAL, leastRetainedWAL))
	}
	if c.QueueBytes < 1<<10 || c.QueueBytes > 1<<30 {
		errs = append(errs, fmt.Errorf("%w: QueueBytes is %d, allowed is %d to %d", ErrInvalidConfig, c.QueueBytes, 1<<10, 1<<30))
	}
	return errors.Join(errs...)
}

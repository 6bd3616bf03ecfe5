package schema

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	defaultSchema = "public"
	defaultOutbox = "outbox"
	defaultInbox  = "inbox"

	// maxIdentifierBytes is NAMEDATALEN-1 of an ordinary Postgres build: a longer
	// name would be truncated in silence (Postgres manual, "Identifiers and Key
	// Words").
	maxIdentifierBytes = 63
)

// ErrInvalidName says that a configured name cannot be a Postgres identifier.
var ErrInvalidName = errors.New("schema: invalid name")

// Postgres names the tables of one outbox and its inbox. The zero value is
// public.outbox and public.inbox.
//
// Names are taken literally and quoted: "Orders" and "orders" are two tables. The
// tables that accompany the outbox (dead letters, settings) get their names from
// its own. A Postgres value is safe for concurrent use.
type Postgres struct {
	// Schema is the Postgres schema of all tables. Default: "public".
	Schema string
	// Name is the outbox table. At most 63 bytes. Default: "outbox".
	Name string
	// InboxName is the inbox table. Several outboxes may share one. At most 63
	// bytes. Default: "inbox".
	InboxName string
}

func (s Postgres) withDefaults() Postgres {
	if s.Schema == "" {
		s.Schema = defaultSchema
	}
	if s.Name == "" {
		s.Name = defaultOutbox
	}
	if s.InboxName == "" {
		s.InboxName = defaultInbox
	}
	return s
}

// Validate reports the first name that Postgres would refuse, truncate or find
// ambiguous. The error wraps ErrInvalidName.
func (s Postgres) Validate() error {
	s = s.withDefaults()
	names := []struct{ field, value string }{
		{"Schema", s.Schema},
		{"Name", s.Name},
		{"InboxName", s.InboxName},
	}
	for _, name := range names {
		if err := validateIdentifier(name.field, name.value); err != nil {
			return err
		}
	}
	taken := map[string]string{}
	for _, relation := range s.relations() {
		if other, ok := taken[relation.name]; ok {
			return fmt.Errorf("%w: %q would be both the %s and the %s", ErrInvalidName, relation.name, other, relation.what)
		}
		taken[relation.name] = relation.what
	}
	return nil
}

// Outbox is the outbox table, qualified and quoted for use in SQL.
func (s Postgres) Outbox() string { return s.qualified(s.withDefaults().Name) }

// DeadLetters is the table of the outbox's dead letters, qualified and quoted for
// use in SQL.
func (s Postgres) DeadLetters() string { return s.qualified(s.deadLettersName()) }

// Settings is the one-row table that holds what all forwarders of the outbox must
// agree on, qualified and quoted for use in SQL.
func (s Postgres) Settings() string { return s.qualified(s.settingsName()) }

// Absences is the table of brokers and destinations that are away, qualified and quoted
// for use in SQL.
func (s Postgres) Absences() string { return s.qualified(s.absencesName()) }

// Slots is the table of the replication slots through which the outbox is read from the write-ahead log,
// qualified and quoted for use in SQL.
func (s Postgres) Slots() string { return s.qualified(s.slotsName()) }

// Inbox is the inbox table, qualified and quoted for use in SQL.
func (s Postgres) Inbox() string { return s.qualified(s.withDefaults().InboxName) }

// RecordFunction is the function by which the inbox records a key, qualified and quoted for use in
// SQL. Consumers need EXECUTE on it, which Postgres grants to PUBLIC by default. It has a name that
// nobody else gives: it outlives its table, and is replaced.
func (s Postgres) RecordFunction() string {
	s = s.withDefaults()
	return s.qualified(fmt.Sprint("watermill_outbox_record_", int32(lockKey("record", s.Schema, s.InboxName)&0x7fffffff)))
}

// LockBase is the first of the 65,536 consecutive advisory lock keys (the bigint
// kind) that this outbox uses: LockBase plus the number of a lane is held while a
// forwarder publishes from that lane. Code that takes advisory locks of its own in
// the same database keeps clear of them.
func (s Postgres) LockBase() int64 {
	s = s.withDefaults()
	return lockKey("outbox", s.Schema, s.Name) &^ 0xffff
}

func (s Postgres) deadLettersName() string { return deriveName(s.withDefaults().Name, "_dead_letters") }
func (s Postgres) settingsName() string    { return deriveName(s.withDefaults().Name, "_settings") }
func (s Postgres) backoffIndexName() string {
	return deriveName(s.withDefaults().Name, "_backoff_idx")
}

func (s Postgres) waitingIndexName() string {
	return deriveName(s.withDefaults().Name, "_waiting_idx")
}

func (s Postgres) absencesName() string { return deriveName(s.withDefaults().Name, "_absences") }

func (s Postgres) slotsName() string { return deriveName(s.withDefaults().Name, "_slots") }

func (s Postgres) blockedIndexName() string { return deriveName(s.deadLettersName(), "_blocked_idx") }

func (s Postgres) deadAtIndexName() string { return deriveName(s.deadLettersName(), "_dead_at_idx") }

func (s Postgres) retentionIndexName() string {
	return deriveName(s.withDefaults().InboxName, "_received_at_idx")
}

func (s Postgres) qualified(name string) string {
	return quote(s.withDefaults().Schema) + "." + quote(name)
}

// relation is a table or an index. Those of a kind are made by the migration since.
type relation struct {
	what, name string
	kind       string
	since      int
	isTable    bool
}

// relations lists everything that shares the namespace of tables in the schema:
// tables and indexes.
func (s Postgres) relations() []relation {
	s = s.withDefaults()
	return []relation{
		{"outbox table", s.Name, kindOutbox, 1, true},
		{"dead letter table", s.deadLettersName(), kindOutbox, 1, true},
		{"settings table", s.settingsName(), kindOutbox, 1, true},
		{"backoff index", s.backoffIndexName(), kindOutbox, 1, false},
		{"absences table", s.absencesName(), kindOutbox, 2, true},
		{"index of waiting rows", s.waitingIndexName(), kindOutbox, 2, false},
		{"index of blocked units", s.blockedIndexName(), kindOutbox, 2, false},
		{"index of dead letters by time", s.deadAtIndexName(), kindOutbox, 2, false},
		{"slots table", s.slotsName(), kindOutbox, 4, true},
		{"inbox table", s.InboxName, kindInbox, 1, true},
		{"retention index", s.retentionIndexName(), kindInbox, 1, false},
		{what: "migrations table", name: migrationsTable},
	}
}

func validateIdentifier(field, name string) error {
	switch {
	case len(name) > maxIdentifierBytes:
		return fmt.Errorf("%w: %s %q has %d bytes, Postgres keeps at most %d", ErrInvalidName, field, name, len(name), maxIdentifierBytes)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%w: %s %q holds a NUL byte", ErrInvalidName, field, name)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %s %q is not valid UTF-8", ErrInvalidName, field, name)
	}
	return nil
}

// deriveName appends a suffix; where the result would be too long it replaces the
// end of the base by a hash of the whole base, so that long names stay distinct.
func deriveName(base, suffix string) string {
	if len(base)+len(suffix) <= maxIdentifierBytes {
		return base + suffix
	}
	sum := sha256.Sum256([]byte(base))
	tag := "_" + hex.EncodeToString(sum[:4])
	kept := base[:maxIdentifierBytes-len(tag)-len(suffix)]
	for !utf8.ValidString(kept) {
		kept = kept[:len(kept)-1]
	}
	return kept + tag + suffix
}

// quote is Postgres' quote_ident, always with quotes.
func quote(identifier string) string {
	return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"`
}

// literal is a string constant that means the same whatever standard_conforming_strings
// is. It is for names only.
func literal(name string) string {
	return `E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(name) + `'`
}

func lockKey(parts ...string) int64 {
	sum := sha256.Sum256([]byte("watermill-outbox\x00" + strings.Join(parts, "\x00")))
	return int64(binary.BigEndian.Uint64(sum[:8])) //nolint:gosec // any 64 bits are a valid key
}

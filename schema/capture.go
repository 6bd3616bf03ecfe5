package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrInvalidCapture says that a Capture cannot become a trigger: a field is missing or
// breaks a rule, the table is missing or of a kind that cannot have one, or Postgres does
// not understand an expression. The error that wraps it says which. Nothing stays of what
// was begun, once the transaction is rolled back.
var ErrInvalidCapture = errors.New("schema: invalid capture")

// Operation is what a statement does to a row.
type Operation string

// The operations that a trigger may capture, spelled as tg_op has them.
const (
	Insert Operation = "INSERT"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
)

// maxDestinationBytes is the limit that the table has as well.
const maxDestinationBytes = 255

// Capture describes how the changes of a business table become events: each row that is
// inserted, updated or deleted has one, which its own transaction writes to the outbox.
//
// ID, PartitionKey, Payload, Metadata and When are SQL expressions. They see
//
//   - changed: the row as the change leaves it; on DELETE the row that was deleted;
//   - new and old: the row after and before it; their columns are NULL on DELETE and on
//     INSERT respectively;
//   - tg_op: 'INSERT', 'UPDATE' or 'DELETE'.
//
// They are evaluated as the role that applied the trigger, with search_path = pg_catalog:
// everything else is qualified (public.price(changed)). They become part of a function as
// they are, so never make them of what users send. With an expression that fails, the
// statement of the writer fails: there is no change without its event.
type Capture struct {
	// Table is the business table's name, taken literally: "Orders" and "orders" are two
	// tables. It is an ordinary or a partitioned table. Required.
	Table string
	// TableSchema is the Postgres schema of the table. Default: "public".
	TableSchema string
	// Destination is that of all its events, at most 255 bytes. Required.
	Destination string
	// On are the operations that have events. Default: all three.
	On []Operation
	// When says which changes have events: those for which it is true. Default: all.
	When string
	// UnchangedUpdates gives an event to an UPDATE that leaves each column as it was, too.
	UnchangedUpdates bool

	// ID is the event id, a text that no other event has. Default: a random UUID.
	ID string
	// PartitionKey is the ordering key. Order is that of commits where the key is of the
	// row itself, or of a row that its writers lock. With NULL the event is a unit of its
	// own, without order. Default: the primary key, as text; one of several columns as a
	// JSON array. An UPDATE that changes the primary key has the old one.
	PartitionKey string
	// Payload is text, or what Postgres turns into text when it assigns it, such as json.
	// Default: an object with "operation" (as tg_op), "schema" and "table" (of this
	// Capture), "before" and "after" (the row, or null).
	Payload string
	// Metadata is a jsonb object of strings. Default: '{}'.
	Metadata string
}

func (c Capture) withDefaults() Capture {
	if c.TableSchema == "" {
		c.TableSchema = defaultSchema
	}
	if len(c.On) == 0 {
		c.On = []Operation{Insert, Update, Delete}
	}
	if c.When == "" {
		c.When = `true`
	}
	if c.ID == "" {
		c.ID = `gen_random_uuid()::text`
	}
	if c.Payload == "" {
		// json, not jsonb: it keeps the order of columns, and the values of json columns
		// that jsonb would refuse, with which the writer would fail.
		c.Payload = `json_build_object('operation', tg_op, 'schema', ` + literal(c.TableSchema) + `, 'table', ` + literal(c.Table) +
			`, 'before', old, 'after', new)`
	}
	if c.Metadata == "" {
		c.Metadata = `'{}'`
	}
	return c
}

// validate takes a Capture with its defaults.
func (c Capture) validate() error {
	if c.Table == "" {
		return fmt.Errorf("%w: Table is required", ErrInvalidCapture)
	}
	for _, name := range []struct{ field, value string }{{"Table", c.Table}, {"TableSchema", c.TableSchema}} {
		if err := validateIdentifier(name.field, name.value); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidCapture, err)
		}
	}
	switch rule := BrokenTextRule(c.Destination); {
	case c.Destination == "":
		return fmt.Errorf("%w: Destination is required", ErrInvalidCapture)
	case len(c.Destination) > maxDestinationBytes:
		return fmt.Errorf("%w: Destination has %d bytes, at most %d are allowed",
			ErrInvalidCapture, len(c.Destination), maxDestinationBytes)
	case rule != "":
		return fmt.Errorf("%w: Destination %q %s", ErrInvalidCapture, c.Destination, rule)
	}
	for _, operation := range c.On {
		if !slices.Contains([]Operation{Insert, Update, Delete}, operation) {
			return fmt.Errorf("%w: On has %q, which is none of Insert, Update and Delete", ErrInvalidCapture, operation)
		}
	}
	return c.validateExpressions()
}

func (c Capture) validateExpressions() error {
	for _, expression := range []struct{ field, value string }{
		{"When", c.When}, {"ID", c.ID}, {"PartitionKey", c.PartitionKey}, {"Payload", c.Payload}, {"Metadata", c.Metadata},
	} {
		if rule := BrokenTextRule(expression.value); rule != "" {
			return fmt.Errorf("%w: %s %q %s", ErrInvalidCapture, expression.field, expression.value, rule)
		}
		if expression.value != "" && strings.TrimSpace(expression.value) == "" {
			return fmt.Errorf("%w: %s is blank", ErrInvalidCapture, expression.field)
		}
	}
	return nil
}

// table is the business table, qualified and quoted.
func (c Capture) table() string { return quote(c.TableSchema) + "." + quote(c.Table) }

func (c Capture) captures(operation Operation) bool { return slices.Contains(c.On, operation) }

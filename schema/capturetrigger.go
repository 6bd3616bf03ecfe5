package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// CaptureTrigger is a trigger on a business table, with its function, that writes the
// events of a Capture to an outbox. Postgres.CaptureTrigger makes one; the zero value is
// of no use. It is safe for concurrent use.
type CaptureTrigger struct {
	capture  Capture // with the partition key and all other defaults
	outbox   string
	function string // qualified and quoted
	proof    string // the function that proves the expressions, qualified and quoted
	trigger  string // unquoted
	columns  string
	lock     int64
}

// CaptureTrigger looks at the business table, and makes the trigger that captures its
// changes. It only reads; Apply creates the trigger, or your own tool runs what SQL
// returns. The outbox, and the table, must exist, and may have been created in tx.
//
// An outbox has one trigger on a table: another Capture of the same table replaces it.
//
// Errors wrap ErrInvalidName, ErrInvalidCapture, ErrNotMigrated or ErrPreparedStatement,
// or come from the database.
func (s Postgres) CaptureTrigger(ctx context.Context, tx *sql.Tx, c Capture) (CaptureTrigger, error) {
	c = c.withDefaults()
	if err := errors.Join(s.Validate(), c.validate()); err != nil {
		return CaptureTrigger{}, err
	}
	if err := s.requireForeign(c); err != nil {
		return CaptureTrigger{}, err
	}
	exists, err := s.relationExists(ctx, tx, s.withDefaults().Name)
	if err != nil {
		return CaptureTrigger{}, explainPrepared(err)
	}
	if !exists {
		return CaptureTrigger{}, fmt.Errorf("%w: there is no %s", ErrNotMigrated, s.Outbox())
	}
	table, err := readCapturedTable(ctx, tx, c)
	if err != nil {
		return CaptureTrigger{}, explainPrepared(err)
	}
	if c.PartitionKey == "" {
		if len(table.key) == 0 {
			return CaptureTrigger{}, fmt.Errorf("%w: %s has no primary key, PartitionKey must say what keeps its events in order",
				ErrInvalidCapture, c.table())
		}
		c.PartitionKey = identity(table.key)
	}
	return s.captureTrigger(c, table), nil
}

// requireForeign keeps a trigger off our own tables: on the outbox it would fire itself.
func (s Postgres) requireForeign(c Capture) error {
	if c.TableSchema != s.withDefaults().Schema {
		return nil
	}
	for _, relation := range s.relations() {
		if relation.name == c.Table {
			return fmt.Errorf("%w: %s is the %s itself", ErrInvalidCapture, c.table(), relation.what)
		}
	}
	return nil
}

func (s Postgres) captureTrigger(c Capture, table capturedTable) CaptureTrigger {
	s = s.withDefaults()
	key := lockKey("capture", s.Schema, s.Name, c.TableSchema, c.Table)
	name := fmt.Sprintf("watermill_outbox_capture_%016x", uint64(key)) //nolint:gosec // the same 64 bits, without a sign
	return CaptureTrigger{
		capture:  c,
		outbox:   s.Outbox(),
		function: s.qualified(name),
		proof:    s.qualified(name + "_proof"),
		// Triggers fire in the order of their names. One that changes the row once more would
		// have its event written before the event of the change that fired it.
		trigger: "00_" + name,
		columns: table.digest,
		lock:    key,
	}
}

// identity is what the row had as its primary key before the change, or has since an INSERT.
func identity(columns []string) string {
	values := make([]string, len(columns))
	for i, column := range columns {
		values[i] = `coalesce(old.` + quote(column) + `, new.` + quote(column) + `)`
	}
	if len(values) == 1 {
		return values[0] + `::text`
	}
	return `json_build_array(` + strings.Join(values, ", ") + `)::text`
}

// Apply creates the trigger, or replaces an earlier one of the same outbox and table. It
// does nothing, and waits for no writer, where the trigger is there as it should be, so
// that a service may call it as it starts. A trigger that was disabled is enabled.
//
// It first has Postgres plan the expressions, and checks the right to insert. Roll tx back
// after an error. To create a trigger waits for the transactions that write to the table,
// and has others wait behind: bound it by ctx or lock_timeout.
//
// The applying role owns the function, and events are written with its rights: it needs
// INSERT on the outbox, CREATE on its schema, and TRIGGER on the table. Those who write to
// the table need no right on the outbox.
//
// Errors wrap ErrInvalidCapture, ErrNotMigrated or ErrPreparedStatement, or come from the
// database.
func (t CaptureTrigger) Apply(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, `SELECT pg_catalog.pg_advisory_xact_lock($1)`, t.lock); err != nil {
		return fmt.Errorf("schema: capture %s: lock: %w", t.capture.table(), explainPrepared(err))
	}
	applied, err := t.isApplied(ctx, tx)
	if err != nil || applied {
		return explainPrepared(err)
	}
	if _, err := tx.ExecContext(ctx, t.SQL()); err != nil {
		return fmt.Errorf("schema: capture %s: %w", t.capture.table(), explainCapture(err))
	}
	return nil
}

// isApplied compares all that an earlier version, or another Capture, would have made
// otherwise.
func (t CaptureTrigger) isApplied(ctx context.Context, tx querier) (applied bool, err error) {
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (
		SELECT FROM pg_catalog.pg_trigger AS t
		JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
		JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid
		WHERE n.nspname = $1 AND c.relname = $2 AND t.tgname = $3 AND t.tgtype = $4::pg_catalog.int2 AND t.tgenabled <> 'D'
			AND p.prosrc = $5::pg_catalog.text AND p.prosecdef)`,
		t.capture.TableSchema, t.capture.Table, t.trigger, t.kind(), t.body()).Scan(&applied)
	if err != nil {
		return false, fmt.Errorf("schema: capture %s: look for the trigger: %w", t.capture.table(), err)
	}
	return applied, nil
}

// kind is the trigger in pg_trigger's bits.
func (t CaptureTrigger) kind() int {
	const perRow = 1
	kind := perRow
	for operation, bit := range map[Operation]int{Insert: 4, Delete: 8, Update: 16} {
		if t.capture.captures(operation) {
			kind |= bit
		}
	}
	return kind
}

// Drop removes the trigger and its function, if they are there. It needs the owner of
// both, and waits for the transactions that use the table. Events in the outbox stay.
func (t CaptureTrigger) Drop(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, t.DropSQL()); err != nil {
		return fmt.Errorf("schema: drop the capture of %s: %w", t.capture.table(), err)
	}
	return nil
}

// explainCapture tells an expression that Postgres does not understand from a right that is
// missing, and from a server that is away.
func explainCapture(err error) error {
	const insufficientPrivilege = "42501"
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || state.SQLState() == insufficientPrivilege {
		return err
	}
	class := state.SQLState()[:2]
	if class == "42" || class == "22" || class == "0A" {
		return fmt.Errorf("%w: %w", ErrInvalidCapture, err)
	}
	return err
}

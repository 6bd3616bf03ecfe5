package schema

import (
	"fmt"
	"strings"
)

// captureSettings keep what the writer's session brings out of the events: the same row has
// the same partition key and the same payload whoever writes it.
const captureSettings = `    SET search_path = pg_catalog, pg_temp
    SET timezone = 'UTC'
    SET datestyle = 'ISO, YMD'
    SET intervalstyle = 'iso_8601'
    SET bytea_output = 'hex'
    SET extra_float_digits = 1
    SET standard_conforming_strings = on
`

// SQL is what Apply runs, for a migration of your own. Run it in one transaction; it sets
// nothing that outlasts it, and may be run again.
func (t CaptureTrigger) SQL() string {
	var on []string
	for _, operation := range []Operation{Insert, Update, Delete} {
		if t.capture.captures(operation) {
			on = append(on, string(operation))
		}
	}
	body, proof := t.body(), t.proofBody()
	return `-- With the rights of its owner: who writes to the table needs none on the outbox.
CREATE OR REPLACE FUNCTION ` + t.function + `() RETURNS pg_catalog.trigger
    LANGUAGE plpgsql SECURITY DEFINER
` + captureSettings + `AS ` + dollarQuoted(body) + `;
-- To fire it needs no right. Who had it could put it on a table of his own.
REVOKE ALL ON FUNCTION ` + t.function + `() FROM PUBLIC;

-- Has the expressions planned, which would happen only as the trigger fires.
CREATE OR REPLACE FUNCTION ` + t.proof + `() RETURNS pg_catalog.void
    LANGUAGE plpgsql
` + captureSettings + `AS ` + dollarQuoted(proof) + `;
SELECT ` + t.proof + `();
DROP FUNCTION ` + t.proof + `();

DROP TRIGGER IF EXISTS ` + quote(t.trigger) + ` ON ` + t.capture.table() + `;
CREATE TRIGGER ` + quote(t.trigger) + ` AFTER ` + strings.Join(on, " OR ") + ` ON ` + t.capture.table() + `
    FOR EACH ROW EXECUTE FUNCTION ` + t.function + `();
`
}

// DropSQL is what Drop runs.
func (t CaptureTrigger) DropSQL() string {
	return `DROP TRIGGER IF EXISTS ` + quote(t.trigger) + ` ON ` + t.capture.table() + `;
DROP FUNCTION IF EXISTS ` + t.function + `();
`
}

func (t CaptureTrigger) body() string {
	unchanged := `    -- What changes nothing has no event. The binary comparison knows every type.
    IF tg_op = 'UPDATE' AND old *= new THEN
        RETURN NULL;
    END IF;
`
	if t.capture.UnchangedUpdates || !t.capture.captures(Update) {
		unchanged = ""
	}
	return `
#variable_conflict use_column
-- The table's columns, as a digest: ` + t.columns + `
DECLARE
    changed record;
BEGIN
` + unchanged + `    changed := coalesce(new, old);
` + t.insert(t.capture.When) + `    RETURN NULL;
END
`
}

// proofBody has the variables of a trigger, and plans what that does without doing it.
func (t CaptureTrigger) proofBody() string {
	return `
#variable_conflict use_column
DECLARE
    old ` + t.capture.table() + `;
    new ` + t.capture.table() + `;
    changed ` + t.capture.table() + `;
    tg_op text;
    tg_name name;
    tg_relid oid;
    tg_table_schema name;
    tg_table_name name;
BEGIN
    IF pg_typeof((SELECT ` + expression(t.capture.Payload) + ` WHERE false)) = 'bytea'::regtype THEN
        RAISE EXCEPTION USING ERRCODE = 'datatype_mismatch',
            MESSAGE = 'the payload is of type bytea, which would be stored as its hexadecimal form: make text of it';
    END IF;
` + t.insert(`false AND `+expression(t.capture.When)) + `END
`
}

func (t CaptureTrigger) insert(condition string) string {
	c := t.capture
	return fmt.Sprintf(`    INSERT INTO %s (id, destination, partition_key, payload, metadata)
    SELECT
        %s,
        %s,
        %s,
        %s,
        %s
    WHERE %s;
`, t.outbox, expression(c.ID), literal(c.Destination), expression(c.PartitionKey), expression(c.Payload), expression(c.Metadata),
		expression(condition))
}

// expression keeps what is written by hand in its place. The line's end ends a comment.
func expression(text string) string {
	if strings.Contains(text, "--") {
		return "(" + text + "\n)"
	}
	return "(" + text + ")"
}

// dollarQuoted is a string constant in which nothing is escaped.
func dollarQuoted(text string) string {
	tag := "$capture$"
	for i := 1; strings.Contains(text, tag); i++ {
		tag = fmt.Sprintf("$capture%d$", i)
	}
	return tag + text + tag
}

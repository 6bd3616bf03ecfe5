package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lib/pq"
)

const (
	// maxStatementBytes bounds what one statement carries, so that neither side has to
	// hold a large call in one piece. (Postgres' own limit is 1 GiB a message.)
	maxStatementBytes = 16 << 20
	// rowOverheadBytes stands for what the array syntax adds to a row.
	rowOverheadBytes = 32
)

// row is a message in the form of the outbox table.
type row struct {
	id           string
	partitionKey string // empty: NULL
	metadata     string
	payload      []byte
	// isText says that the payload goes into the column payload: text holds any valid
	// UTF-8 but NUL, everything else needs payload_bytes.
	isText bool
}

func (r *row) size() int {
	payload := len(r.payload)
	if !r.isText {
		payload *= 2 // hexadecimal
	}
	return rowOverheadBytes + len(r.id) + len(r.partitionKey) + payload + len(r.metadata)
}

// insertStatements are those of an outbox, one for each shape of what is written.
type insertStatements struct{ outbox string }

// shape says what a statement has to carry. Most messages have nothing special, and pay for
// nothing else.
type shape struct {
	keyed, described bool
	text, bytes      bool
	// foreign says that there is more than ASCII, which a session of another encoding than
	// UTF-8 would turn into something else. (ASCII is the same in all that Postgres has.)
	foreign bool
}

func shapeOf(destination string, rows []row) shape {
	s := shape{foreign: !isASCII(destination)}
	for i := range rows {
		r := &rows[i]
		s.keyed = s.keyed || r.partitionKey != ""
		s.described = s.described || r.metadata != noMetadata
		s.text, s.bytes = s.text || r.isText, s.bytes || !r.isText
		s.foreign = s.foreign || !isASCII(r.id) || !isASCII(r.partitionKey) || !isASCII(r.metadata) || r.isText && !isASCII(r.payload)
	}
	return s
}

func isASCII[T string | []byte](text T) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// noMetadata is the column's default.
const noMetadata = "{}"

// inUTF8 stores nothing in a session of another encoding, which the row count tells. (SQL_ASCII
// converts nothing.)
const inUTF8 = ` WHERE pg_catalog.pg_client_encoding() IN ('UTF8', 'SQL_ASCII')`

func (s insertStatements) exec(ctx context.Context, tx Tx, destination string, rows []row) error {
	for len(rows) > 0 {
		chunk := rows[:chunkLength(rows)]
		query, args := s.many(destination, chunk)
		if len(chunk) == 1 {
			query, args = s.one(destination, chunk[0])
		}
		result, err := tx.ExecContext(ctx, query, args...)
		if err := requireStored(result, err, len(chunk)); err != nil {
			return err
		}
		rows = rows[len(chunk):]
	}
	return nil
}

// statement is one that is put together, column by column.
type statement struct {
	columns, values []string
	args            []any
}

// add adds a column with its value, in which %s stands for the argument.
func (s *statement) add(column, value string, arg any) {
	s.args = append(s.args, arg)
	s.columns = append(s.columns, column)
	s.values = append(s.values, strings.ReplaceAll(value, "%s", fmt.Sprint("$", len(s.args))))
}

func (s insertStatements) one(destination string, r row) (query string, args []any) {
	var (
		parts statement
		has   = shapeOf(destination, []row{r})
	)
	parts.add(`id`, `%s::text`, r.id)
	parts.add(`destination`, `%s::text`, destination)
	if has.keyed {
		parts.add(`partition_key`, `%s::text`, r.partitionKey)
	}
	if has.described {
		parts.add(`metadata`, `%s::jsonb`, r.metadata)
	}
	if has.text {
		parts.add(`payload`, `%s::text`, string(r.payload))
	} else {
		parts.add(`payload_bytes`, `%s::bytea`, r.payload)
	}
	into := `INSERT INTO ` + s.outbox + ` (` + strings.Join(parts.columns, ", ") + `) `
	if has.foreign {
		return into + `SELECT ` + strings.Join(parts.values, ", ") + inUTF8, parts.args
	}
	return into + `VALUES (` + strings.Join(parts.values, ", ") + `)`, parts.args
}

// many carries arrays, one for each column that some row needs.
//
// pg_catalog: an unnest(text[]) of somebody else's, wherever in the search_path, would fit better
// than Postgres' own. ORDER BY: seq is drawn for the rows in the order that the SELECT gives them.
func (s insertStatements) many(destination string, rows []row) (query string, args []any) {
	var (
		parts          statement
		has            = shapeOf(destination, rows)
		arrays, fields []string
	)
	array := func(field, kind string, value any) {
		parts.args = append(parts.args, value)
		arrays = append(arrays, fmt.Sprintf(`pg_catalog.unnest($%d::%s[])`, len(parts.args), kind))
		fields = append(fields, field)
	}
	set := func(column, value string) {
		parts.columns, parts.values = append(parts.columns, column), append(parts.values, value)
	}
	parts.add(`destination`, `%s::text`, destination)
	array(`id`, `text`, pq.StringArray(each(rows, func(r *row) string { return r.id })))
	set(`id`, `m.id`)
	if has.keyed {
		array(`partition_key`, `text`, pq.StringArray(each(rows, func(r *row) string { return r.partitionKey })))
		set(`partition_key`, `nullif(m.partition_key, '')`)
	}
	if has.described {
		array(`metadata`, `text`, pq.StringArray(each(rows, func(r *row) string { return r.metadata })))
		set(`metadata`, `m.metadata::jsonb`)
	}
	ifText, ifBytes := `m.payload`, `m.payload_bytes`
	if has.text && has.bytes {
		array(`is_text`, `boolean`, pq.BoolArray(each(rows, func(r *row) bool { return r.isText })))
		ifText, ifBytes = `CASE WHEN m.is_text THEN m.payload END`, `CASE WHEN NOT m.is_text THEN m.payload_bytes END`
	}
	if has.text {
		array(`payload`, `text`, pq.StringArray(each(rows, (*row).text)))
		set(`payload`, ifText)
	}
	if has.bytes {
		array(`payload_bytes`, `bytea`, pq.ByteaArray(each(rows, (*row).binary)))
		set(`payload_bytes`, ifBytes)
	}
	where := ``
	if has.foreign {
		where = inUTF8
	}
	return `INSERT INTO ` + s.outbox + ` (` + strings.Join(parts.columns, ", ") + `) SELECT ` + strings.Join(parts.values, ", ") + `
		FROM ROWS FROM (` + strings.Join(arrays, ", ") + `) WITH ORDINALITY AS m (` + strings.Join(fields, ", ") + `, ordinal)` +
		where + ` ORDER BY m.ordinal`, parts.args
}

func each[T any](rows []row, of func(*row) T) []T {
	values := make([]T, len(rows))
	for i := range rows {
		values[i] = of(&rows[i])
	}
	return values
}

func (r *row) text() string {
	if r.isText {
		return string(r.payload)
	}
	return ""
}

func (r *row) binary() []byte {
	if r.isText {
		return nil
	}
	return r.payload
}

// requireStored takes what ExecContext returned.
func requireStored(result sql.Result, err error, want int) error {
	if err != nil {
		return err
	}
	stored, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("rows affected: %w", err)
	}
	if stored != int64(want) {
		return fmt.Errorf("%w: %d of %d", ErrNotStored, stored, want)
	}
	return nil
}

// chunkLength is how many of the rows fit into one statement: at least one.
func chunkLength(rows []row) int {
	size := 0
	for i, r := range rows {
		size += r.size()
		if size > maxStatementBytes && i > 0 {
			return i
		}
	}
	return len(rows)
}

func fitsText(payload []byte) bool {
	return utf8.Valid(payload) && bytes.IndexByte(payload, 0) < 0
}

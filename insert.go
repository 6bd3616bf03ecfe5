package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"unicode/utf8"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
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

func (r row) size() int {
	payload := len(r.payload)
	if !r.isText {
		payload *= 2 // hexadecimal
	}
	return rowOverheadBytes + len(r.id) + len(r.partitionKey) + payload + len(r.metadata)
}

type insertStatements struct {
	text  string
	bytes string
	many  string
}

func newInsertStatements(s schema.Postgres) insertStatements {
	into := `INSERT INTO ` + s.Outbox()
	const (
		one = `SELECT $1::text, $2::text, nullif($3::text, ''), $4::jsonb, `
		// A session of another encoding would turn every text into another one. It stores
		// nothing instead, which the row count tells. (SQL_ASCII converts nothing.)
		inUTF8 = ` WHERE pg_catalog.pg_client_encoding() IN ('UTF8', 'SQL_ASCII')`
	)
	return insertStatements{
		text:  into + ` (id, destination, partition_key, metadata, payload) ` + one + `$5::text` + inUTF8,
		bytes: into + ` (id, destination, partition_key, metadata, payload_bytes) ` + one + `$5::bytea` + inUTF8,
		// pg_catalog: an unnest(text[]) of somebody else's, wherever in the search_path, would
		// fit better than Postgres' own.
		// ORDER BY: seq is drawn for the rows in the order that the SELECT gives them.
		many: into + ` (id, destination, partition_key, metadata, payload, payload_bytes)
			SELECT m.id, $1::text, nullif(m.partition_key, ''), m.metadata::jsonb,
				CASE WHEN m.is_text THEN m.payload END,
				CASE WHEN NOT m.is_text THEN m.payload_bytes END
			FROM ROWS FROM (
				pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::text[]),
				pg_catalog.unnest($5::boolean[]), pg_catalog.unnest($6::text[]), pg_catalog.unnest($7::bytea[])
			) WITH ORDINALITY AS m (id, partition_key, metadata, is_text, payload, payload_bytes, ordinal)
			` + inUTF8 + ` ORDER BY m.ordinal`,
	}
}

func (s insertStatements) exec(ctx context.Context, tx Tx, destination string, rows []row) error {
	for len(rows) > 0 {
		chunk := rows[:chunkLength(rows)]
		if err := s.execChunk(ctx, tx, destination, chunk); err != nil {
			return err
		}
		rows = rows[len(chunk):]
	}
	return nil
}

func (s insertStatements) execChunk(ctx context.Context, tx Tx, destination string, rows []row) error {
	if len(rows) == 1 {
		return s.execOne(ctx, tx, destination, rows[0])
	}
	ids := make([]string, len(rows))
	keys := make([]string, len(rows))
	metadata := make([]string, len(rows))
	isText := make([]bool, len(rows))
	texts := make([]string, len(rows))
	binaries := make([][]byte, len(rows))
	for i, r := range rows {
		ids[i], keys[i], metadata[i] = r.id, r.partitionKey, r.metadata
		if isText[i] = r.isText; r.isText {
			texts[i] = string(r.payload)
		} else {
			binaries[i] = r.payload
		}
	}
	result, err := tx.ExecContext(ctx, s.many, destination,
		pq.StringArray(ids), pq.StringArray(keys), pq.StringArray(metadata),
		pq.BoolArray(isText), pq.StringArray(texts), pq.ByteaArray(binaries))
	return requireStored(result, err, len(rows))
}

func (s insertStatements) execOne(ctx context.Context, tx Tx, destination string, r row) error {
	query, payload := s.text, any(string(r.payload))
	if !r.isText {
		query, payload = s.bytes, r.payload
	}
	result, err := tx.ExecContext(ctx, query, r.id, destination, r.partitionKey, r.metadata, payload)
	return requireStored(result, err, 1)
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

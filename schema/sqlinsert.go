package schema

import (
	"bytes"
	"database/sql/driver"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	maxPayloadBytes = 128 << 20
	// maxCallBytes leaves room below the 1 GiB that Postgres takes in one message.
	maxCallBytes = 512 << 20
)

// ErrInvalidMessage says that a message cannot be stored or sent as it is. The error
// that wraps it names the message and the rule. Nothing was written.
var ErrInvalidMessage = errors.New("schema: invalid message")

// insertedRow is a message on its way to the statement. As JSON the payload is base64,
// which takes any byte and grows by the same factor whatever it holds.
type insertedRow struct {
	ID           string          `json:"id"`
	PartitionKey string          `json:"partition_key"`
	Metadata     json.RawMessage `json:"metadata"`
	Payload      []byte          `json:"payload"`
	IsText       bool            `json:"is_text"`
}

func (r insertedRow) size() int {
	const (
		names   = 100 // of the fields, in each row
		escaped = 3   // what escapeNonASCII makes of a byte, at most
	)
	return names + escaped*(len(r.ID)+len(r.PartitionKey)) + len(r.Metadata) + base64.StdEncoding.EncodedLen(len(r.Payload))
}

// InsertQuery is for watermill-sql's Publisher, which writes rows like those of
// outbox.Publisher with it: the message's UUID is the event id, the metadata value under
// PartitionKeyMetadata the partition key. One statement takes any number of messages,
// none included, in their order, and any payload; a call may take 512 MiB with the
// payloads as base64. The session's client_encoding does not matter.
//
// Errors wrap ErrInvalidMessage or ErrInvalidName. Lengths of id, destination and partition
// key are for the table's constraints (SQLSTATE 23514).
func (s Postgres) InsertQuery(topic string, msgs message.Messages) (wmsql.Query, error) {
	if err := s.Validate(); err != nil {
		return wmsql.Query{}, err
	}
	rows := make([]insertedRow, len(msgs))
	size := 0
	for i, msg := range msgs {
		if msg == nil {
			return wmsql.Query{}, fmt.Errorf("%w: message %d is nil", ErrInvalidMessage, i)
		}
		row, err := newInsertedRow(msg)
		if err != nil {
			return wmsql.Query{}, fmt.Errorf("message %d (%.255q): %w", i, msg.UUID, err)
		}
		rows[i] = row
		if size += row.size(); size > maxCallBytes {
			return wmsql.Query{}, fmt.Errorf("%w: the messages of this call take more than %d bytes: publish fewer at once",
				ErrInvalidMessage, maxCallBytes)
		}
	}
	encoded, err := json.Marshal(rows)
	if err != nil {
		return wmsql.Query{}, fmt.Errorf("%w: %w", ErrInvalidMessage, err)
	}
	return wmsql.Query{Query: s.insertStatement(), Args: []any{topic, unlogged{string(escapeNonASCII(encoded))}}}, nil
}

// insertStatement: $1 destination, $2 the rows. ORDER BY: seq is drawn for them in the
// order that the SELECT gives them.
func (s Postgres) insertStatement() string {
	return `INSERT INTO ` + s.Outbox() + ` (id, destination, partition_key, metadata, payload, payload_bytes)
		SELECT m.id, $1::text, nullif(m.partition_key, ''), m.metadata,
			CASE WHEN m.is_text THEN pg_catalog.convert_from(pg_catalog.decode(m.payload, 'base64'), 'UTF8') END,
			CASE WHEN NOT m.is_text THEN pg_catalog.decode(m.payload, 'base64') END
		FROM ROWS FROM (
			pg_catalog.json_to_recordset($2::text::json) AS (id text, partition_key text, metadata jsonb, payload text, is_text boolean)
		) WITH ORDINALITY AS m (id, partition_key, metadata, payload, is_text, ordinal)
		ORDER BY m.ordinal`
}

func newInsertedRow(msg *message.Message) (insertedRow, error) {
	if rule := BrokenTextRule(msg.UUID); rule != "" {
		return insertedRow{}, fmt.Errorf("%w: its UUID (the event id) %s", ErrInvalidMessage, rule)
	}
	if len(msg.Payload) > maxPayloadBytes {
		return insertedRow{}, fmt.Errorf("%w: its payload has %d bytes, at most %d are allowed",
			ErrInvalidMessage, len(msg.Payload), maxPayloadBytes)
	}
	metadata, rule := EncodeMetadata(msg.Metadata)
	if rule != "" {
		return insertedRow{}, fmt.Errorf("%w: %s", ErrInvalidMessage, rule)
	}
	payload := []byte(msg.Payload)
	if payload == nil {
		payload = []byte{} // nil would be null, not an empty payload
	}
	return insertedRow{
		ID:           msg.UUID,
		PartitionKey: msg.Metadata[PartitionKeyMetadata],
		Metadata:     escapeNonASCII([]byte(metadata)),
		Payload:      payload,
		IsText:       utf8.Valid(payload) && bytes.IndexByte(payload, 0) < 0,
	}, nil
}

// escapeNonASCII makes plain ASCII of valid JSON. A session whose client_encoding is not
// UTF8 would turn other characters into other ones, and an id into another id.
func escapeNonASCII(encoded []byte) []byte {
	if !bytes.ContainsFunc(encoded, isNonASCII) {
		return encoded
	}
	escaped := make([]byte, 0, 2*len(encoded))
	for _, char := range string(encoded) {
		switch high, low := utf16.EncodeRune(char); {
		case !isNonASCII(char):
			escaped = append(escaped, byte(char)) //nolint:gosec // ASCII
		case high == unicode.ReplacementChar: // needs no pair
			escaped = fmt.Appendf(escaped, `\u%04x`, char)
		default:
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		}
	}
	return escaped
}

func isNonASCII(char rune) bool { return char > unicode.MaxASCII }

// unlogged is a text parameter whose content does not get into a log: watermill-sql
// traces the parameters of its statements.
type unlogged struct{ text string }

func (u unlogged) Value() (driver.Value, error) { return u.text, nil }

func (u unlogged) String() string { return fmt.Sprintf("(%d bytes)", len(u.text)) }

package forwarder

import (
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// row is a claimed row: locked until the transaction of its claim ends.
type row struct {
	seq      int64
	id       string
	unitHash int64
	// waiting says that it has waited for an attempt of its own, or behind another row.
	waiting bool
	// attempts are those that it has spent.
	attempts int64
	// fresh says that it has never failed.
	fresh    bool
	outgoing Outgoing
	// bytes is what counts towards BatchBytes.
	bytes int
	// unreadable says why no message can be made of the row.
	unreadable error
}

// rowColumns are what rowScan reads.
var rowColumns = rowColumnsOf(`payload, payload_bytes`)

func rowColumnsOf(payload string) string {
	return `seq, unit_hash, attempts, last_error IS NULL, id, destination, coalesce(nullif(partition_key, ''), id),
	` + payload + `, metadata::text, next_attempt_at IS NOT NULL`
}

// rowScan takes the rowColumns of a line. Any may be NULL, if there is no row.
type rowScan struct {
	seq, unitHash, attempts sql.Null[int64]
	fresh, waiting          sql.NullBool
	id, destination, key    sql.NullString
	content                 content
}

func (s *rowScan) targets() []any {
	return append([]any{
		&s.seq, &s.unitHash, &s.attempts, &s.fresh, &s.id, &s.destination, &s.key,
	}, append(s.content.targets(), &s.waiting)...)
}

func (s *rowScan) row() row {
	if !s.seq.Valid {
		return row{}
	}
	r := row{
		seq:      s.seq.V,
		id:       s.id.String,
		unitHash: s.unitHash.V,
		waiting:  s.waiting.Bool,
		attempts: s.attempts.V,
		fresh:    s.fresh.Bool && s.attempts.V == 0,
		bytes:    len(s.content.payload()) + len(s.content.metadata) + len(s.key.String),
		outgoing: Outgoing{Destination: s.destination.String, PartitionKey: s.key.String},
	}
	r.fill(s.content)
	return r
}

// flowLine is a line of a flowQuery. One is enough for all of them.
type flowLine struct {
	seq, unitHash, attempts int64
	fresh                   bool
	id, destination, key    string
	size                    int
	content                 content
}

func (l *flowLine) targets() []any {
	return append([]any{
		&l.seq, &l.unitHash, &l.attempts, &l.fresh, &l.id, &l.destination, &l.key, &l.size,
	}, l.content.targets()...)
}

// row has no message yet if its content did not come with it.
func (l *flowLine) row() row {
	r := row{
		seq:      l.seq,
		id:       l.id,
		unitHash: l.unitHash,
		attempts: l.attempts,
		fresh:    l.fresh && l.attempts == 0,
		bytes:    l.size,
		outgoing: Outgoing{Destination: l.destination, PartitionKey: l.key},
	}
	if l.content.metadata != nil { // the column is never NULL
		r.fill(l.content)
	}
	return r
}

// content is what a row carries: its payload, in one of two columns, and its metadata.
type content struct{ text, bytes, metadata []byte }

func (c *content) targets() []any { return []any{&c.text, &c.bytes, &c.metadata} }

func (c *content) payload() []byte {
	if c.text != nil {
		return c.text
	}
	return c.bytes
}

func (r *row) fill(c content) {
	r.outgoing.Message = message.NewMessage(r.id, c.payload())
	var err error
	// The row's fault, not the claim's: the others go on.
	if r.outgoing.Message.Metadata, err = decodeMetadata(c.metadata); err != nil {
		r.unreadable = fmt.Errorf("metadata: %w", err)
	}
}

// decodeMetadata reads the jsonb column. A producer that writes SQL may put anything
// into the object: a value that is no string arrives as its JSON text.
func decodeMetadata(encoded []byte) (message.Metadata, error) {
	if string(encoded) == "{}" {
		return message.Metadata{}, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(encoded, &values); err != nil {
		return nil, err //nolint:wrapcheck // row wraps it
	}
	metadata := make(message.Metadata, len(values))
	for name, value := range values {
		var text string
		if err := json.Unmarshal(value, &text); err != nil || string(value) == "null" {
			text = string(value)
		}
		metadata[name] = text
	}
	return metadata, nil
}

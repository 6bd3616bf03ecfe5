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
	text                    sql.NullString
	payload                 []byte
	metadata                sql.NullString
}

func (s *rowScan) targets() []any {
	return []any{
		&s.seq, &s.unitHash, &s.attempts, &s.fresh, &s.id, &s.destination, &s.key,
		&s.text, &s.payload, &s.metadata, &s.waiting,
	}
}

func (s *rowScan) row() row {
	if !s.seq.Valid {
		return row{}
	}
	payload := s.payload
	if s.text.Valid {
		payload = []byte(s.text.String)
	}
	r := row{
		seq:      s.seq.V,
		id:       s.id.String,
		unitHash: s.unitHash.V,
		waiting:  s.waiting.Bool,
		attempts: s.attempts.V,
		fresh:    s.fresh.Bool && s.attempts.V == 0,
		bytes:    len(payload) + len(s.metadata.String) + len(s.key.String),
		outgoing: Outgoing{
			Destination:  s.destination.String,
			PartitionKey: s.key.String,
			Message:      message.NewMessage(s.id.String, payload),
		},
	}
	var err error
	// The row's fault, not the claim's: the others go on.
	if r.outgoing.Message.Metadata, err = decodeMetadata(s.metadata.String); err != nil {
		r.unreadable = fmt.Errorf("metadata: %w", err)
	}
	return r
}

// decodeMetadata reads the jsonb column. A producer that writes SQL may put anything
// into the object: a value that is no string arrives as its JSON text.
func decodeMetadata(encoded string) (message.Metadata, error) {
	if encoded == "{}" {
		return message.Metadata{}, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(encoded), &values); err != nil {
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

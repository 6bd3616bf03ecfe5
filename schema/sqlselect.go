package schema

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// SelectQuery is for watermill-sql's Subscriber: it locks the oldest row of the topic
// (the destination) that is first in its unit of order, due, and not locked by another
// subscriber.
//
// It returns one row, never more: of several, the subscriber would acknowledge only the
// last. Looking at the first rows of the units keeps the order within a unit between
// any number of subscribers; where the first hundred units are all in work or waiting,
// it returns nothing.
func (s Postgres) SelectQuery(topic, consumerGroup string, offsetsAdapter wmsql.OffsetsAdapter) wmsql.Query {
	if consumerGroup != "" {
		return refuseGroup(consumerGroup)
	}
	if !s.isSameOutbox(offsetsAdapter) {
		return refuse(fmt.Errorf("%w: OffsetsAdapter is a %T", ErrOtherAdapter, offsetsAdapter))
	}
	return wmsql.Query{Query: s.selectStatement(), Args: []any{topic}}
}

func (s Postgres) isSameOutbox(adapter wmsql.OffsetsAdapter) bool {
	switch other := adapter.(type) {
	case Postgres:
		return other.Outbox() == s.Outbox()
	case *Postgres:
		return other != nil && other.Outbox() == s.Outbox()
	}
	return false
}

// selectStatement: $1 destination. It goes from unit to unit only as far as it must.
//
// A unit's first row is its lock. What a statement takes for the first row is either
// that, or was deleted since the statement began; then it is not locked, and its unit
// is left alone until the next poll. So a unit is never in two hands, although
// statement and lock have no common moment. A row that is not due, or that somebody
// else has locked, holds back its unit as well.
//
// CASE keeps the planner from guessing how few rows a destination has. On a guess of a
// handful it sorts the whole table for the first row, or compiles the statement, which
// takes longer than all the rest of it.
func (s Postgres) selectStatement() string {
	const ofDestination = ` WHERE CASE WHEN published_at IS NULL THEN destination = $1::text ELSE false END `
	return `WITH RECURSIVE head AS (
			(SELECT seq, ARRAY[unit_hash] AS units FROM ` + s.Outbox() + ofDestination + ` ORDER BY seq LIMIT 1)
			UNION ALL
			SELECT further.seq, pg_catalog.array_append(head.units, further.unit_hash)
			FROM head CROSS JOIN LATERAL (
				SELECT seq, unit_hash FROM ` + s.Outbox() + ofDestination + `
					AND seq > head.seq AND unit_hash <> ALL (head.units)
				ORDER BY seq LIMIT 1
			) AS further
			WHERE pg_catalog.cardinality(head.units) < 100
		)
		SELECT locked.seq, ` + asBase64(inUTF8(`locked.id`)) + `,
			` + asBase64(`coalesce(locked.payload_bytes, `+inUTF8(`locked.payload`)+`)`) + `,
			` + asBase64(inUTF8(`(SELECT coalesce(pg_catalog.jsonb_object_agg(key, coalesce(value, 'null')), '{}')
				FROM pg_catalog.jsonb_each_text(locked.metadata))::text`)) + `,
			` + asBase64(inUTF8(`coalesce(locked.partition_key, '')`)) + `
		FROM head CROSS JOIN LATERAL (
			SELECT seq, id, payload, payload_bytes, metadata, partition_key FROM ` + s.Outbox() + `
			WHERE seq = head.seq AND published_at IS NULL
				AND (next_attempt_at IS NULL OR next_attempt_at <= pg_catalog.statement_timestamp())
			FOR UPDATE SKIP LOCKED
		) AS locked
		LIMIT 1`
}

// asBase64 has bytes sent as ASCII, whatever settings the session has: client_encoding would
// turn a text into another one, and pgx cannot read what bytea_output = escape makes of
// bytes.
func asBase64(bytes string) string { return `pg_catalog.encode(` + bytes + `, 'base64')` }

func inUTF8(text string) string { return `pg_catalog.convert_to(` + text + `, 'UTF8')` }

// UnmarshalMessage makes a message of a row of SelectQuery: event id, payload and
// metadata as they were written. A metadata value that is no JSON string arrives as its
// JSON text. A partition key that stands only in its column, as other producers write
// it, arrives as metadata under PartitionKeyMetadata.
func (s Postgres) UnmarshalMessage(row wmsql.Scanner) (wmsql.Row, error) {
	var (
		r            wmsql.Row
		partitionKey []byte
	)
	if err := row.Scan(&r.Offset, &r.UUID, &r.Payload, &r.Metadata, &partitionKey); err != nil {
		return wmsql.Row{}, fmt.Errorf("schema: read a row of %s: %w", s.Outbox(), err)
	}
	for _, column := range []*[]byte{&r.UUID, &r.Payload, &r.Metadata, &partitionKey} {
		decoded, err := base64.StdEncoding.AppendDecode([]byte{}, *column) // passes by the ends of Postgres' lines
		if err != nil {
			return wmsql.Row{}, fmt.Errorf("schema: row %d in %s: %w", r.Offset, s.Outbox(), err)
		}
		*column = decoded
	}
	r.Msg = message.NewMessage(string(r.UUID), r.Payload)
	if err := json.Unmarshal(r.Metadata, &r.Msg.Metadata); err != nil {
		return wmsql.Row{}, fmt.Errorf("schema: metadata of row %d in %s: %w", r.Offset, s.Outbox(), err)
	}
	if _, ok := r.Msg.Metadata[PartitionKeyMetadata]; !ok && len(partitionKey) > 0 {
		r.Msg.Metadata.Set(PartitionKeyMetadata, string(partitionKey))
	}
	return r, nil
}

// AckMessageQuery deletes exactly the row that was acknowledged.
func (s Postgres) AckMessageQuery(_ string, row wmsql.Row, consumerGroup string) wmsql.Query {
	if consumerGroup != "" {
		return refuseGroup(consumerGroup)
	}
	return wmsql.Query{Query: `DELETE FROM ` + s.Outbox() + ` WHERE seq = $1::bigint`, Args: []any{row.Offset}}
}

// BeforeSubscribingQueries makes Subscribe fail where a consumer group is set
// (ErrConsumerGroup), a name is invalid or the table is missing.
func (s Postgres) BeforeSubscribingQueries(topic, consumerGroup string) []wmsql.Query {
	if consumerGroup != "" {
		return []wmsql.Query{refuseGroup(consumerGroup)}
	}
	return s.SchemaInitializingQueries(topic)
}

// ConsumedMessageQuery is empty: the lock that SelectQuery takes is all it needs.
func (s Postgres) ConsumedMessageQuery(string, wmsql.Row, string, []byte) wmsql.Query {
	return wmsql.Query{}
}

// NextOffsetQuery fails with ErrOtherAdapter: there are no offsets, and SelectQuery does
// not ask for them. Another SchemaAdapter would.
func (s Postgres) NextOffsetQuery(string, string) wmsql.Query { return refuse(ErrOtherAdapter) }

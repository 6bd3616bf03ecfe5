package wal

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/watermill-outbox/outbox/forwarder"
)

// needed are the columns that a change is made of.
var needed = map[string]uint32{
	"seq": pgtype.Int8OID, "id": pgtype.TextOID, "destination": pgtype.TextOID, "partition_key": pgtype.TextOID,
	"payload": pgtype.TextOID, "payload_bytes": pgtype.ByteaOID, "metadata": pgtype.JSONBOID,
}

// layout is where the columns of the outbox stand.
type layout map[string]int

// layoutOf finds the columns by their names: others may have been added, anywhere.
func layoutOf(m *pglogrepl.RelationMessage) (layout, error) {
	places := layout{}
	for i, column := range m.Columns {
		kind, isNeeded := needed[column.Name]
		if !isNeeded {
			continue
		}
		if column.DataType != kind {
			return nil, fmt.Errorf("%w: the type of its column %s is another one", ErrSchemaDrift, column.Name)
		}
		places[column.Name] = i
	}
	for name := range needed {
		if _, isThere := places[name]; !isThere {
			return nil, fmt.Errorf("%w: its column %s is missing", ErrSchemaDrift, name)
		}
	}
	return places, nil
}

// change reads a row.
func (l layout) change(tuple *pglogrepl.TupleData) (c forwarder.Change, err error) {
	if c.Seq, err = l.number(tuple, "seq"); err != nil {
		return c, err
	}
	for name, target := range map[string]*string{"id": &c.ID, "destination": &c.Destination, "partition_key": &c.PartitionKey} {
		column, err := l.column(tuple, name)
		if err != nil {
			return c, err
		}
		*target = string(column.Data)
	}
	text, err := l.column(tuple, "payload")
	if err != nil {
		return c, err
	}
	if c.Payload = text.Data; text.DataType == pglogrepl.TupleDataTypeNull {
		if c.Payload, err = l.bytes(tuple, "payload_bytes"); err != nil {
			return c, err
		}
	}
	c.Metadata, err = l.json(tuple, "metadata")
	return c, err
}

func (l layout) column(tuple *pglogrepl.TupleData, name string) (*pglogrepl.TupleDataColumn, error) {
	place := l[name]
	if place >= len(tuple.Columns) {
		return nil, fmt.Errorf("%w: a row has %d columns", ErrSchemaDrift, len(tuple.Columns))
	}
	column := tuple.Columns[place]
	if column.DataType == pglogrepl.TupleDataTypeToast {
		return nil, fmt.Errorf("%w: column %s of an insert is not in the log", ErrSchemaDrift, name)
	}
	return column, nil
}

func (l layout) number(tuple *pglogrepl.TupleData, name string) (int64, error) {
	column, err := l.column(tuple, name)
	if err != nil {
		return 0, err
	}
	const bytes = 8
	if column.DataType == pglogrepl.TupleDataTypeBinary && len(column.Data) == bytes {
		return int64(binary.BigEndian.Uint64(column.Data)), nil //nolint:gosec // its bits are meant
	}
	number, err := strconv.ParseInt(string(column.Data), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: column %s is not a number", ErrSchemaDrift, name)
	}
	return number, nil
}

func (l layout) bytes(tuple *pglogrepl.TupleData, name string) ([]byte, error) {
	column, err := l.column(tuple, name)
	if err != nil {
		return nil, err
	}
	if column.DataType != pglogrepl.TupleDataTypeText {
		return column.Data, nil
	}
	const prefix = `\x`
	decoded := make([]byte, hex.DecodedLen(max(0, len(column.Data)-len(prefix))))
	if len(column.Data) < len(prefix) || string(column.Data[:len(prefix)]) != prefix {
		return nil, fmt.Errorf("%w: column %s is not in hex", ErrSchemaDrift, name)
	}
	if _, err := hex.Decode(decoded, column.Data[len(prefix):]); err != nil {
		return nil, fmt.Errorf("%w: column %s is not in hex", ErrSchemaDrift, name)
	}
	return decoded, nil
}

// json leaves out the version that jsonb has in binary.
func (l layout) json(tuple *pglogrepl.TupleData, name string) ([]byte, error) {
	column, err := l.column(tuple, name)
	if err != nil {
		return nil, err
	}
	if column.DataType != pglogrepl.TupleDataTypeBinary {
		return column.Data, nil
	}
	if len(column.Data) == 0 || column.Data[0] != 1 {
		return nil, fmt.Errorf("%w: column %s is of an unknown version", ErrSchemaDrift, name)
	}
	return column.Data[1:], nil
}

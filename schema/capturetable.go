package schema

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
)

// capturedTable is what the trigger must know of the business table.
type capturedTable struct {
	key []string // columns of the primary key, in its order
	// digest differs when a column, or the type of one, does. A session that has fired the
	// trigger has its plan for the former types, and fails, until the function is another.
	digest string
}

func readCapturedTable(ctx context.Context, tx *sql.Tx, c Capture) (capturedTable, error) {
	if err := requireCapturable(ctx, tx, c); err != nil {
		return capturedTable{}, err
	}
	rows, err := tx.QueryContext(ctx, `SELECT a.attname, tn.nspname, t.typname, a.atttypmod,
			coalesce(pg_catalog.array_position(k.conkey, a.attnum), 0)
		FROM pg_catalog.pg_class AS c
		JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND NOT a.attisdropped
			AND a.attnum > 0::pg_catalog.int2
		JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
		JOIN pg_catalog.pg_namespace AS tn ON tn.oid = t.typnamespace
		LEFT JOIN pg_catalog.pg_constraint AS k ON k.conrelid = c.oid AND k.contype = 'p'
		WHERE n.nspname = $1 AND c.relname = $2
		ORDER BY a.attnum`, c.TableSchema, c.Table)
	if err != nil {
		return capturedTable{}, fmt.Errorf("schema: read the columns of %s: %w", c.table(), err)
	}
	defer rows.Close()
	var (
		byPlace = map[int]string{}
		shape   []byte
	)
	for rows.Next() {
		var (
			column, typeSchema, typeName string
			modifier, place              int
		)
		if err := rows.Scan(&column, &typeSchema, &typeName, &modifier, &place); err != nil {
			return capturedTable{}, fmt.Errorf("schema: read the columns of %s: %w", c.table(), err)
		}
		shape = fmt.Appendf(shape, "%q %q %q %d\n", column, typeSchema, typeName, modifier)
		if place > 0 {
			byPlace[place] = column
		}
	}
	if err := rows.Err(); err != nil {
		return capturedTable{}, fmt.Errorf("schema: read the columns of %s: %w", c.table(), err)
	}
	sum := sha256.Sum256(shape)
	table := capturedTable{digest: hex.EncodeToString(sum[:8])}
	for place := range len(byPlace) {
		table.key = append(table.key, byPlace[place+1])
	}
	return table, nil
}

func requireCapturable(ctx context.Context, tx querier, c Capture) error {
	var (
		kind        string
		isPartition bool
	)
	err := tx.QueryRowContext(ctx, `SELECT c.relkind::pg_catalog.text, c.relispartition
		FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, c.TableSchema, c.Table).Scan(&kind, &isPartition)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: there is no table %s", ErrInvalidCapture, c.table())
	case err != nil:
		return fmt.Errorf("schema: look for %s: %w", c.table(), err)
	case kind != "r" && kind != "p":
		return fmt.Errorf("%w: %s is neither an ordinary nor a partitioned table", ErrInvalidCapture, c.table())
	case isPartition:
		// With the trigger of the whole table, each change would have two events.
		return fmt.Errorf("%w: %s is a partition, capture the table that it is part of", ErrInvalidCapture, c.table())
	}
	return nil
}

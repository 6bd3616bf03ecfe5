package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// What a producer in any language may write: three columns, as literals and as
// parameters, byte for byte.
func TestThreeColumnInsertKeepsEveryByte(t *testing.T) {
	t.Parallel()
	const payload = `{"path":"C:\\dir","quote":"\"","newline":"\n","accent":"\u00e9","raw":"é"}`
	db := testdb.New(t)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload)
		VALUES ('literal', 'orders', '`+payload+`')`)
	require.NoError(t, err)
	for id, statement := range map[string]string{
		"parameter": ` VALUES ($1, 'orders', $2)`,
		"varchar":   ` VALUES ($1, 'orders', $2::varchar)`,
	} {
		_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload)`+statement, id, payload)
		require.NoError(t, err)
	}
	var same int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+db.Schema.Outbox()+`
		WHERE payload = $1 AND payload_bytes IS NULL AND partition_key IS NULL AND metadata = '{}'
			AND created_at <= clock_timestamp() AND attempts = 0 AND next_attempt_at IS NULL AND published_at IS NULL`,
		payload).Scan(&same))
	require.Equal(t, 3, same)
}

func TestTableRefusesWhatCannotBeForwarded(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for name, values := range map[string]string{
		"empty id":           `'', 'orders', 'x', NULL, '{}'`,
		"id too long":        `repeat('x', 256), 'orders', 'x', NULL, '{}'`,
		"no destination":     `'1', '', 'x', NULL, '{}'`,
		"no payload":         `'1', 'orders', NULL::text, NULL, '{}'`,
		"two payloads":       `'1', 'orders', 'x', '\x00', '{}'`,
		"metadata too large": `'1', 'orders', 'x', NULL, jsonb_build_object('k', repeat('v', 1048577))`,
		"payload too large":  `'1', 'orders', repeat('x', 134217729), NULL, '{}'`,
		"metadata is array":  `'1', 'orders', 'x', NULL, '[]'`,
		// Some 500 bytes in storage.
		"long numbers": `'1', 'orders', 'x', NULL, ('{"a":[0' || repeat(',1e131071', 40) || ']}')::jsonb`,
	} {
		_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+`
			(id, destination, payload, payload_bytes, metadata) VALUES (`+values+`)`)
		var coded interface{ SQLState() string }
		require.ErrorAs(t, err, &coded, name)
		require.Equal(t, "23514", coded.SQLState(), name)
	}
}

// Postgres keeps a large value compressed, and an INSERT … SELECT hands it over like that.
func TestTableMeasuresMetadataAsTheForwarderReadsIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	theirs := `"` + db.Schema.Schema + `".theirs`
	for _, statement := range []string{
		`CREATE TABLE ` + theirs + ` (metadata jsonb)`,
		`INSERT INTO ` + theirs + ` VALUES (jsonb_build_object('k', repeat('v', 10000000)))`,
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload, metadata)
		SELECT '1', 'orders', 'x', metadata FROM `+theirs)
	require.ErrorContains(t, err, "metadata_size")
}

// No forwarder would look at such a row, and no subscriber could acknowledge it.
func TestTableRefusesASeqThatIsNotPositive(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insertWithSeq := `INSERT INTO ` + db.Schema.Outbox() + ` (seq, id, destination, payload) OVERRIDING SYSTEM VALUE VALUES ($1, '1', 'orders', 'x')`
	for _, seq := range []int{0, -1} {
		_, err := db.ExecContext(t.Context(), insertWithSeq, seq)
		require.ErrorContains(t, err, "seq_is_positive")
	}
	_, err := db.ExecContext(t.Context(), insertWithSeq, 1)
	require.NoError(t, err)
}

// The hash of the unit is part of the table's contract: stable, null-safe, and the
// same for a key that is absent and one that is empty.
func TestUnitHash(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, row := range []struct{ id, destination, key string }{
		{"1", "orders", `NULL`},
		{"1", "orders", `''`},
		{"2", "orders", `'1'`},
		{"3", "orders", `'a'`},
		{"4", "invoices", `'a'`},
	} {
		_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+`
			(id, destination, partition_key, payload) VALUES ($1, $2, `+row.key+`, '')`, row.id, row.destination)
		require.NoError(t, err)
	}
	rows, err := db.QueryContext(t.Context(), `SELECT unit_hash FROM `+db.Schema.Outbox()+` ORDER BY seq`)
	require.NoError(t, err)
	defer rows.Close()
	var hashes []int32
	for rows.Next() {
		var hash int32
		require.NoError(t, rows.Scan(&hash))
		hashes = append(hashes, hash)
	}
	require.NoError(t, rows.Err())
	require.Equal(t, []int32{-28854626, -28854626, -28854626, -1055336738, 1090060868}, hashes)
}

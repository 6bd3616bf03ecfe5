package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// Postgres cuts a name that is too long without an error. With the longest names that it
// takes, which differ in their last byte alone, everything still gets one of its own.
func TestLongestNamesAreNotCut(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	wide := strings.Repeat("é", 31)
	base := schema.Postgres{Schema: db.Schema.Schema + strings.Repeat("s", 63-len(db.Schema.Schema))}
	db.DropSchema(t, base.Schema)
	var want []string
	for _, last := range []string{"1", "2"} {
		s := base
		s.Name, s.InboxName = wide+last, strings.Repeat("i", 62)+last
		require.NoError(t, s.Migrate(t.Context(), db.DB))
		require.NoError(t, s.Check(t.Context(), db.DB))
		insertThreeColumns(t, db.DB, s)
		want = append(want, s.Name, s.InboxName, unquoted(s, s.DeadLetters()), unquoted(s, s.Settings()), unquoted(s, s.Absences()),
			unquoted(s, s.Slots()))
	}
	want = append(want, "watermill_outbox_migrations")
	made := &testdb.DB{DB: db.DB, Schema: base}
	require.ElementsMatch(t, want, tablesIn(t, made))
	require.Len(t, want, 13)

	var own int
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_index WHERE indrelid IN (
		SELECT oid FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1))`, base.Schema).Scan(&own))
	require.Equal(t, 2*(3+3+1+1+1+2)+1, own,
		"each outbox has three indexes, its dead letters too, settings, absences and slots one, each inbox two")
}

func unquoted(s schema.Postgres, name string) string {
	return strings.Trim(strings.TrimPrefix(name, `"`+s.Schema+`".`), `"`)
}

func TestNamesOneByteTooLongAreRefused(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	for _, s := range []schema.Postgres{
		{Schema: strings.Repeat("s", 64)},
		{Schema: db.Schema.Schema, Name: strings.Repeat("é", 32)},
		{Schema: db.Schema.Schema, InboxName: strings.Repeat("i", 64)},
	} {
		require.ErrorIs(t, s.Migrate(t.Context(), db.DB), schema.ErrInvalidName)
		require.ErrorIs(t, s.Check(t.Context(), db.DB), schema.ErrInvalidName)
	}
	require.Empty(t, tablesIn(t, db))
}

package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/schema"
)

func TestNamesAreQuotedAndQualified(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		schema                               schema.Postgres
		outbox, deadLetters, settings, inbox string
	}{
		"zero value": {
			outbox:      `"public"."outbox"`,
			deadLetters: `"public"."outbox_dead_letters"`,
			settings:    `"public"."outbox_settings"`,
			inbox:       `"public"."inbox"`,
		},
		"own names": {
			schema:      schema.Postgres{Schema: `my "app"`, Name: "Events", InboxName: "Seen"},
			outbox:      `"my ""app"""."Events"`,
			deadLetters: `"my ""app"""."Events_dead_letters"`,
			settings:    `"my ""app"""."Events_settings"`,
			inbox:       `"my ""app"""."Seen"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, test.schema.Validate())
			require.Equal(t, test.outbox, test.schema.Outbox())
			require.Equal(t, test.deadLetters, test.schema.DeadLetters())
			require.Equal(t, test.settings, test.schema.Settings())
			require.Equal(t, test.inbox, test.schema.Inbox())
		})
	}
}

func TestLongNamesStayDistinct(t *testing.T) {
	t.Parallel()
	one := schema.Postgres{Name: strings.Repeat("é", 31) + "1"}
	two := schema.Postgres{Name: strings.Repeat("é", 31) + "2"}
	require.NoError(t, one.Validate())
	require.NotEqual(t, one.DeadLetters(), two.DeadLetters())
	for _, table := range []string{one.DeadLetters(), one.Settings()} {
		name := strings.Trim(strings.TrimPrefix(table, `"public".`), `"`)
		require.LessOrEqual(t, len(name), 63)
		require.True(t, strings.HasPrefix(name, "ééé"))
	}
}

func TestInvalidNames(t *testing.T) {
	t.Parallel()
	for rule, names := range map[string]schema.Postgres{
		`Name "` + strings.Repeat("x", 64) + `" has 64 bytes`:  {Name: strings.Repeat("x", 64)},
		`Schema "` + strings.Repeat("é", 32) + `" has 64 byte`: {Schema: strings.Repeat("é", 32)},
		`InboxName "` + strings.Repeat("x", 64) + `" has 64 b`: {InboxName: strings.Repeat("x", 64)},
		`InboxName "a\x00" holds a NUL byte`:                   {InboxName: "a\x00"},
		`Schema "\xff" is not valid UTF-8`:                     {Schema: "\xff"},
		`"same" would be both the outbox table and the inbox`:  {Name: "same", InboxName: "same"},
		`"box_settings" would be both the settings table`:      {Name: "box", InboxName: "box_settings"},
	} {
		err := names.Validate()
		require.ErrorIs(t, err, schema.ErrInvalidName)
		require.ErrorContains(t, err, rule)
	}
}

func TestLockBaseLeavesRoomForLanes(t *testing.T) {
	t.Parallel()
	require.Zero(t, schema.Postgres{}.LockBase()&0xffff)
	require.Equal(t, schema.Postgres{}.LockBase(), schema.Postgres{Schema: "public", Name: "outbox"}.LockBase())
	require.NotEqual(t, schema.Postgres{}.LockBase(), schema.Postgres{Name: "outbox2"}.LockBase())
	require.NotEqual(t, schema.Postgres{}.LockBase(), schema.Postgres{Name: "Outbox"}.LockBase())
	require.NotEqual(t, schema.Postgres{}.LockBase(), schema.Postgres{Schema: "Public"}.LockBase())
	require.NotEqual(t, schema.Postgres{Schema: "a", Name: "bc"}.LockBase(), schema.Postgres{Schema: "ab", Name: "c"}.LockBase())
}

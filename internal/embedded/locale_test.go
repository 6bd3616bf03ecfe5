package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

func TestPostgresLocale(t *testing.T) {
	t.Parallel()

	pg := start(t, embedded.PostgresConfig{Locale: "de_DE.UTF-8"})

	var messages string
	query(t, pg.DSN()+"&lc_messages=de_DE.UTF-8", `SHOW lc_messages`, &messages)
	require.Equal(t, "de_DE.UTF-8", messages)
}

func TestPostgresLocaleRefused(t *testing.T) {
	t.Parallel()

	for locale, reason := range map[string]string{
		"de_DE":       "charset",
		"xx_XX.UTF-8": "package locales",
	} {
		_, err := embedded.StartPostgres(t.Context(), embedded.PostgresConfig{Locale: locale})
		require.ErrorContains(t, err, locale)
		require.ErrorContains(t, err, reason)
	}
}

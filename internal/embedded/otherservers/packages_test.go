package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDatabasePart(t *testing.T) {
	t.Parallel()

	const lines = `
github.com/watermill-outbox/outbox/schema errors fmt
github.com/watermill-outbox/outbox/schema.test fmt github.com/watermill-outbox/outbox/internal/testdb
github.com/watermill-outbox/outbox/inbox.test github.com/watermill-outbox/outbox/internal/testdb os
github.com/watermill-outbox/outbox/forwarder/kafka.test github.com/watermill-outbox/outbox/internal/testdb github.com/watermill-outbox/outbox/internal/testkafka
github.com/watermill-outbox/outbox/forwarder/amqp.test github.com/watermill-outbox/outbox/internal/testamqp github.com/watermill-outbox/outbox/internal/testdb
github.com/watermill-outbox/outbox/internal/services.test net os
`
	require.Equal(t, []string{module + "/schema", module + "/inbox"}, databasePart(lines[1:]))
}

func TestDatabasePackages(t *testing.T) {
	t.Chdir("../../..")

	packages, err := databasePackages(t.Context())
	require.NoError(t, err)
	require.Contains(t, packages, module+"/schema")
	require.NotContains(t, packages, module+"/forwarder/kafka")

	t.Chdir("internal/embedded")

	_, err = databasePackages(t.Context())
	require.ErrorContains(t, err, "this is not the clone's root")
}

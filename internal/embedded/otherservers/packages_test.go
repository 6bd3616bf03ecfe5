package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsersOfDatabase(t *testing.T) {
	t.Parallel()

	const lines = `
github.com/watermill-outbox/outbox/schema errors fmt
github.com/watermill-outbox/outbox.test github.com/watermill-outbox/outbox/internal/testdb os
github.com/watermill-outbox/outbox/schema.test fmt github.com/watermill-outbox/outbox/internal/testdb
github.com/watermill-outbox/outbox/internal/testamqp.test net os
`
	require.Equal(t, []string{"", "/schema"}, usersOfDatabase(lines[1:]))
}

func TestEachPackageIsInOneList(t *testing.T) {
	t.Parallel()

	everyone := slices.Concat(databasePart, otherPart)

	chosen, err := choose(everyone)
	require.NoError(t, err)
	require.Len(t, chosen, len(databasePart))
	require.Contains(t, chosen, module+"/schema")

	_, err = choose(append(everyone, "/new"))
	require.ErrorContains(t, err, module+"/new are about the database")

	_, err = choose(everyone[1:])
	require.ErrorContains(t, err, "no tests of "+module+" use a database")
}

// What the lists say is what there is.
func TestDatabasePackages(t *testing.T) {
	t.Chdir("../../..")

	packages, err := databasePackages(t.Context())
	require.NoError(t, err)
	require.Len(t, packages, len(databasePart))

	t.Chdir("internal/embedded")

	_, err = databasePackages(t.Context())
	require.ErrorContains(t, err, "is this the clone's root?")
}

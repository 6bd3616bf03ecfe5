package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const module = "github.com/watermill-outbox/outbox"

// databasePart are the packages, "" the root, whose tests are about the database.
var databasePart = []string{
	"", "/forwarder", "/forwarder/wal", "/inbox", "/internal/sqlsuite", "/internal/testdb", "/middleware", "/pgxtx", "/schema",
}

// otherPart are those that need one for what they test: brokers, whole services, a
// pooler, the scripts.
var otherPart = []string{
	"/forwarder/amqp", "/forwarder/broker", "/forwarder/kafka",
	"/internal/conformance", "/internal/ledger", "/internal/pgbouncertest", "/internal/services",
}

// databasePackages lists the database part. A package whose tests use a test database
// has to be in one of the two lists, so that a new one is not forgotten.
func databasePackages(ctx context.Context) ([]string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-test", "-f", `{{.ImportPath}}{{range .Deps}} {{.}}{{end}}`, "./...")
	list.Stderr = os.Stderr

	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}

	return choose(usersOfDatabase(string(out)))
}

// usersOfDatabase takes lines with a package and what that depends on, where tests are
// packages as well, and returns the packages whose tests use a test database.
func usersOfDatabase(lines string) []string {
	var users []string

	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)

		name, isTest := strings.CutSuffix(fields[0], ".test")
		if isTest && slices.Contains(fields, module+"/internal/testdb") {
			users = append(users, strings.TrimPrefix(name, module))
		}
	}

	return users
}

func choose(users []string) ([]string, error) {
	for _, user := range users {
		if !slices.Contains(databasePart, user) && !slices.Contains(otherPart, user) {
			return nil, fmt.Errorf("say in otherservers/packages.go whether the tests of %s%s are about the database", module, user)
		}
	}

	var chosen []string

	for _, name := range databasePart {
		if !slices.Contains(users, name) {
			return nil, fmt.Errorf("no tests of %s%s use a database: is this the clone's root?", module, name)
		}

		chosen = append(chosen, module+name)
	}

	return chosen, nil
}

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

// databasePackages lists the database part of the tests: the packages whose tests use
// a test database, and no broker. A new one is part of it by itself.
func databasePackages(ctx context.Context) ([]string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-test", "-f", `{{.ImportPath}}{{range .Deps}} {{.}}{{end}}`, "./...")
	list.Stderr = os.Stderr

	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}

	packages := databasePart(string(out))
	for _, name := range []string{"", "/schema", "/forwarder", "/inbox", "/middleware"} {
		if !slices.Contains(packages, module+name) {
			return nil, fmt.Errorf("the tests of %s%s are not among %q: this is not the clone's root, or they use a broker now",
				module, name, packages)
		}
	}

	return packages, nil
}

// databasePart takes lines with a package and what that depends on, where tests are
// packages as well, and returns the packages that such tests are of.
func databasePart(lines string) []string {
	var packages []string

	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)

		name, isTest := strings.CutSuffix(fields[0], ".test")
		if isTest && uses(fields, "testdb") && !uses(fields, "testkafka") && !uses(fields, "testamqp") {
			packages = append(packages, name)
		}
	}

	return packages
}

func uses(fields []string, helper string) bool {
	return slices.Contains(fields, module+"/internal/"+helper)
}

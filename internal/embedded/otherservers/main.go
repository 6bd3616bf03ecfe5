// The program otherservers runs the database part of the tests on other Postgres servers
// than that of "make services", one after the other: the oldest and the newest release
// that the module works with, and an installed one whose defaults are nothing like the
// usual ones. "make test-servers" calls it as
//
//	otherservers -dir=<the clone's root> <flags for go test>...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/watermill-outbox/outbox/internal/embedded"
)

func main() {
	embedded.RunChildIfAsked()

	dir := flag.String("dir", ".", "the clone's root")
	flag.Parse()

	if err := os.Chdir(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "otherservers:", err)
		os.Exit(1)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, flag.Args())

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "otherservers:", err)
		os.Exit(1)
	}
}

// run takes what is to be handed to go test. A failure on one server does not keep the
// others from their turn.
func run(ctx context.Context, testFlags []string) error {
	packages, err := databasePackages(ctx)
	if err != nil {
		return err
	}

	var errs []error

	for _, s := range servers {
		begun := time.Now()
		if err := s.test(ctx, slices.Concat(testFlags, packages)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s, err))
		}

		fmt.Printf("--- %s: took %s\n", s, time.Since(begun).Round(time.Second))
	}

	return errors.Join(errs...)
}

func (s server) test(ctx context.Context, args []string) (err error) {
	pg, err := embedded.StartPostgres(ctx, s.config)
	if err != nil {
		return err //nolint:wrapcheck // it says what failed.
	}

	defer func() { err = errors.Join(err, pg.Close()) }() //nolint:contextcheck // it bounds itself.

	version, err := s.prepare(ctx, pg.DSN())
	if err != nil {
		return err
	}

	args = append([]string{"test"}, args...)
	fmt.Printf("--- %s, Postgres %s: go %s\n", s, version, strings.Join(args, " "))

	for _, d := range s.defaults {
		fmt.Printf("    %s = %s\n", d.name, d.value)
	}

	test := exec.CommandContext(ctx, "go", args...)
	test.Cancel = func() error { return test.Process.Signal(os.Interrupt) }
	test.WaitDelay = 10 * time.Second
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	test.Env = append(environment(), "POSTGRES_DSN="+pg.DSN())

	if err := test.Run(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}

	return nil
}

// environment leaves out what would lead drivers elsewhere.
func environment() []string {
	var kept []string

	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") {
			kept = append(kept, variable)
		}
	}

	return kept
}

// The quickstart runs the main job end to end: an order service, a forwarder that is
// killed hard, and a payment service, on a throwaway Postgres and an in-process Kafka
// or on real servers with Kafka or RabbitMQ. It then counts what Postgres and the broker
// hold.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
	"github.com/watermill-outbox/outbox/internal/embedded"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130

	// deadline bounds the whole run but its clean-up.
	deadline = 50 * time.Second

	// auditTimeout bounds the audit, which takes place also when the time is over.
	auditTimeout = 10 * time.Second

	defaultOrders = 200
	// maxOrders is what a small machine forwards and pays well within the deadline.
	maxOrders = 5000
)

var errTimeOver = fmt.Errorf("not done after %s", deadline)

func main() {
	// This program is also the keeper of its throwaway Postgres, and its forwarder.
	embedded.RunChildIfAsked()
	runForwarderIfAsked()
	os.Exit(run(os.Args[1:]))
}

func run(args []string) (exitCode int) {
	options, err := parseOptions(args, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return exitUsage
	}
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(interrupted, stop) // a second Ctrl-C ends the program at once

	ctx, cancel := context.WithTimeoutCause(interrupted, deadline, errTimeOver)
	defer cancel()
	figures, err := runDemo(ctx, options)
	switch {
	case err != nil && interrupted.Err() != nil:
		fmt.Fprintln(os.Stderr, "quickstart: interrupted:", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
	}
	if figures != nil {
		fmt.Println(figures) // the last line, whatever it says
	}
	switch {
	case err == nil:
		return 0
	case interrupted.Err() != nil:
		return exitInterrupted
	default:
		return exitFailed
	}
}

type options struct {
	broker servers.Kind
	orders int
}

// parseOptions reports what is wrong with the command line on output, as package flag
// does.
func parseOptions(args []string, output io.Writer) (options, error) {
	var parsed options
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(output)
	flags.Usage = func() {
		_, _ = io.WriteString(output, usage)
		flags.PrintDefaults()
	}
	parsed.broker = servers.Embedded
	flags.Func("broker", brokerUsage, func(text string) (err error) {
		parsed.broker, err = servers.ParseKind(text)
		return err
	})
	flags.IntVar(&parsed.orders, "orders", defaultOrders, fmt.Sprintf("how many orders to commit, 1 to %d", maxOrders))
	err := flags.Parse(args)
	switch {
	case err != nil:
		return parsed, err
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case parsed.orders < 1 || parsed.orders > maxOrders:
		err = fmt.Errorf("-orders is %d, allowed is 1 to %d", parsed.orders, maxOrders)
	default:
		return parsed, nil
	}
	_, _ = fmt.Fprintf(output, "quickstart: %v\n\n", err)
	flags.Usage()
	return parsed, err
}

const usage = `quickstart runs an order service and a payment service over outbox, forwarder and
inbox, kills the forwarder hard between publish and settle, and then counts what
Postgres and the broker hold. It exits with 0 only if nothing is lost, nothing is a
phantom and nothing was debited twice.

`

const brokerUsage = `which ` + "`servers`" + ` to run on (default embedded)
embedded: a throwaway Postgres and an in-process Kafka, gone afterwards
kafka:    a real Postgres and Kafka, at the addresses in POSTGRES_DSN and
          KAFKA_BROKERS
amqp:     a real Postgres and RabbitMQ, at the addresses in POSTGRES_DSN and
          AMQP_URI
The addresses default to those of "make services". What the run makes on real
servers has names of its own and is removed at the end`

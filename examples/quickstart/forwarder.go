package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/broker"
)

const (
	// forwarderVariable holds a forwarderConfig and makes a process the forwarder.
	forwarderVariable = "QUICKSTART_FORWARDER"
	// brokerPrefix begins the variables that say which broker is in use, and where.
	brokerPrefix = "QUICKSTART_BROKER_"

	// batchSize is small, so that a kill sends a handful again, and not hundreds.
	batchSize = 20
	// longestStop is how long a forwarder without a parent may live: its broker may be
	// gone as well, and it would wait for that.
	longestStop = 5 * time.Second
)

type forwarderConfig struct {
	Addresses servers.Addresses `json:"addresses"`
	// DieAfter kills the process after so many events were published and before the
	// last batch of them is settled. 0: never.
	DieAfter int `json:"die_after"`
}

// runForwarderIfAsked makes this process the forwarder, and does not return, if the
// supervisor started it as that.
func runForwarderIfAsked() {
	encoded, asked := os.LookupEnv(forwarderVariable)
	if !asked {
		return
	}
	if err := runForwarder(encoded); err != nil {
		fmt.Fprintln(os.Stderr, "forwarder process:", err)
		os.Exit(exitFailed)
	}
	os.Exit(0)
}

func runForwarder(encoded string) (err error) {
	ctx := untilInputEnds()
	var cfg forwarderConfig
	if err := json.Unmarshal([]byte(encoded), &cfg); err != nil {
		return fmt.Errorf("%s: %w", forwarderVariable, err)
	}
	logger := newLogger()
	db, err := sql.Open("postgres", cfg.Addresses.PostgresDSN)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	// Kafka or RabbitMQ: the configuration says which.
	brokerConfig, err := broker.Load("", brokerPrefix)
	if err != nil {
		return err
	}
	publisher, err := broker.Open(brokerConfig, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, publisher.Close()) }()
	inTopics, err := cfg.Addresses.InTopics(publisher)
	if err != nil {
		return err
	}
	relay, err := forwarder.New(
		db,
		&mortal{Publisher: inTopics, dieAfter: int64(cfg.DieAfter)},
		forwarder.Config{Schema: cfg.Addresses.Tables(), BatchSize: batchSize},
		logger,
	)
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

// untilInputEnds returns a context that ends with the parent, whatever ends that:
// nothing writes to the pipe, and the kernel closes it.
func untilInputEnds() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		time.AfterFunc(longestStop, func() { os.Exit(exitFailed) })
		cancel()
	}()
	return ctx
}

// mortal is a publisher that takes the whole process with it, as a power cut would:
// the broker has confirmed the batch, and Postgres has not heard of it.
type mortal struct {
	servers.Publisher

	dieAfter  int64
	published atomic.Int64
}

func (m *mortal) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	results := m.Publisher.PublishBatch(ctx, msgs)
	confirmed := 0
	for _, err := range results {
		if err == nil {
			confirmed++
		}
	}
	if confirmed > 0 && m.published.Add(int64(confirmed)) >= m.dieAfter && m.dieAfter > 0 {
		die(confirmed)
	}
	return results
}

// die tells the supervisor how much is left unsettled, and kills the process: nothing
// deferred runs, no connection is closed in an orderly way.
func die(unsettled int) {
	fmt.Println(unsettled)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // the signal is on its way
}

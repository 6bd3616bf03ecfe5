package ledger

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/schema"
)

const (
	childVariable = "LEDGER_FORWARDER"
	// runningLine is what a child says once its forwarder runs.
	runningLine = "running"
	// longestStop is how long a child may take to stop before it is taken for stuck.
	longestStop = time.Minute
	exitStuck   = 3
)

// childConfig crosses the border between processes as JSON.
type childConfig struct {
	Number    int
	DSN       string
	Schema    schema.Postgres
	Broker    BrokerAddress
	Forwarder ForwarderConfig
	// DieAfterBatches kills the process after so many batches were published and before
	// the last of them is settled. 0: never.
	DieAfterBatches int64
}

// RunForwarderIfAsked turns a process that a run has started into a forwarder, which
// exits when its standard input ends: its parent closes it, or is dead. In every other
// process it does nothing. It is called first thing in TestMain.
func RunForwarderIfAsked() {
	encoded, asked := os.LookupEnv(childVariable)
	if !asked {
		return
	}
	if err := runChild(encoded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runChild(encoded string) error {
	var cfg childConfig
	if err := json.Unmarshal([]byte(encoded), &cfg); err != nil {
		return fmt.Errorf("%s: %w", childVariable, err)
	}
	logger := watermill.NewStdLogger(false, false)
	points := &points{}
	db, err := openWithPoints(cfg.DSN, cfg.Schema, points)
	if err != nil {
		return err
	}
	defer db.Close()
	pub, err := cfg.Broker.openPublisher(logger)
	if err != nil {
		return err
	}
	defer pub.Close()
	pub = pointedPublisher{publisher: pub, points: points}
	if cfg.DieAfterBatches > 0 {
		pub = dieAfter(pub, cfg.DieAfterBatches)
	}
	source, err := sourceOf(cfg, logger)
	if err != nil {
		return err
	}
	f, err := forwarder.New(db, pub, forwarder.Config{
		Source:       source,
		Schema:       cfg.Schema,
		Ordering:     cfg.Forwarder.Ordering,
		Settlement:   cfg.Forwarder.Settlement,
		OnDeadLetter: cfg.Forwarder.OnDeadLetter,
		Workers:      cfg.Forwarder.Workers,
		BatchSize:    cfg.Forwarder.BatchSize,
		PollInterval: cfg.Forwarder.PollInterval,
		ListenDSN:    cfg.Forwarder.ListenDSN,

		MaxAttempts:     cfg.Forwarder.MaxAttempts,
		PublishTimeout:  cfg.Forwarder.PublishTimeout,
		DatabaseTimeout: cfg.Forwarder.DatabaseTimeout,
		RetryInitial:    cfg.Forwarder.RetryInitial,
		RetryMax:        cfg.Forwarder.RetryMax,
	}, logger)
	if err != nil {
		return err
	}
	go func() {
		<-f.Running()
		fmt.Println(runningLine)
	}()
	return f.Run(untilInputEnds(points))
}

// sourceOf is nil where the table is read.
func sourceOf(cfg childConfig, logger watermill.LoggerAdapter) (forwarder.Source, error) {
	if cfg.Forwarder.Slot == "" {
		return nil, nil //nolint:nilnil // as said
	}
	dsn, err := url.Parse(cfg.DSN)
	if err != nil {
		return nil, err
	}
	parameters := dsn.Query()
	parameters.Set("application_name", readerName(cfg.Number))
	dsn.RawQuery = strings.ReplaceAll(parameters.Encode(), "+", "%20") // pgx takes a plus literally
	source, err := wal.New(wal.Config{
		Schema: cfg.Schema, ReplicationDSN: dsn.String(), Slot: cfg.Forwarder.Slot, Publication: cfg.Forwarder.Slot,
		AcceptUnboundedWAL: true,
	}, logger)
	if err != nil {
		return nil, err
	}
	return source, nil
}

// readerName is what the server knows a replica by that reads the log.
func readerName(number int) string { return fmt.Sprint("ledger-", number) }

// untilInputEnds does what it is told meanwhile.
func untilInputEnds(points *points) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); { // whatever ends it
			points.obey(lines.Text())
		}
		time.AfterFunc(longestStop, func() { os.Exit(exitStuck) })
		cancel()
	}()
	return ctx
}

// mortal is a publisher that takes the whole process with it, as a power cut would:
// the broker has confirmed, and the database has not heard of it.
type mortal struct {
	publisher

	left atomic.Int64
}

func dieAfter(p publisher, batches int64) publisher {
	m := &mortal{publisher: p}
	m.left.Store(batches)
	return m
}

func (m *mortal) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	results := m.publisher.PublishBatch(ctx, msgs)
	if anyConfirmed(results) && m.left.Add(-1) == 0 {
		die()
	}
	return results
}

func anyConfirmed(results []error) bool {
	for _, err := range results {
		if err == nil {
			return true
		}
	}
	return false
}

func die() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // the signal is on its way
}

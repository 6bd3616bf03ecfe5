package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// The writers have the numbers from 0.
const partReplicas = 1 << 32

// Run writes, forwards, kills and consumes as cfg says, and reports whether the books
// balance. An error says that the run itself did not work, or that the outbox did not
// drain: then there is no verdict. It leaves no goroutine and no process.
func Run(ctx context.Context, cfg Config) (report Report, err error) {
	if err := cfg.setDefaults(); err != nil {
		return Report{}, err
	}
	if err := cfg.validate(); err != nil {
		return Report{}, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer func() {
		if err == nil {
			return
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause // what failed first, maybe in the background, explains the rest
		}
		err = fmt.Errorf("seed %d: %w", cfg.Seed, err)
	}()

	r := &run{config: cfg, tables: newTables(cfg.Schema), book: newBook(), started: time.Now()}
	if err := r.openDatabases(); err != nil {
		return Report{}, err
	}
	defer r.closeDatabases()
	keys := make([]string, cfg.Keys)
	for i := range keys {
		keys[i] = keyName(i)
	}
	if err := r.tables.create(ctx, r.db, keys, cfg.InsertDelay); err != nil {
		return Report{}, err
	}
	r.replicas = newReplicas(cfg, fail)
	if r.consumer, err = newConsumer(cfg, r.consumerDB, r.tables); err != nil {
		return Report{}, err
	}
	if err := r.work(ctx, fail); err != nil {
		return Report{}, err
	}
	return r.report(ctx)
}

// openDatabases keeps a connection for each writer and each message in flight: to make
// one costs more than what it is used for.
func (r *run) openDatabases() (err error) {
	const (
		messagesInFlight = 16
		looks            = 4
	)
	open := func(dsn string, connections int) *sql.DB {
		db, openErr := sql.Open("postgres", dsn)
		if openErr != nil {
			err = fmt.Errorf("ledger: %w", openErr)
			return nil
		}
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
		return db
	}
	r.db = open(r.config.DSN, looks+r.config.Writers)
	r.writerDB = open(r.config.WriterDSN, r.config.Writers)
	r.consumerDB = open(r.config.ConsumerDSN, messagesInFlight)
	return err
}

func (r *run) closeDatabases() {
	_ = r.db.Close()
	_ = r.writerDB.Close()
	_ = r.consumerDB.Close()
}

type run struct {
	config Config
	// db is the ledger's own, the others are those of the parties.
	db, writerDB, consumerDB *sql.DB

	tables   tables
	book     *book
	replicas *replicas
	consumer *consumer
	started  time.Time
	// hit is how many processes faults have hit, but for kills: one that hits all counts
	// them all.
	hit int

	deliveries []Delivery
}

// work returns once everything is written, forwarded and handled, and nothing that it
// started is left.
func (r *run) work(ctx context.Context, fail context.CancelCauseFunc) (err error) {
	defer func() {
		if err != nil {
			fail(err) // what runs in the background ends at once
		}
		r.replicas.stop()
		err = errors.Join(err, r.consumer.stop())
	}()
	if err := r.replicas.start(ctx); err != nil {
		return err
	}
	if err := r.consumer.start(ctx); err != nil {
		return err
	}
	if err := r.write(ctx, fail); err != nil {
		return err
	}
	if err := r.drain(ctx); err != nil {
		return err
	}
	if err := r.readDeliveries(ctx); err != nil {
		return err
	}
	return r.consumer.catchUp(ctx)
}

// write has the writers write. Meanwhile replicas are killed, spread over the whole
// time, and in the middle of it the consumer restarts.
func (r *run) write(ctx context.Context, fail func(error)) error {
	writers, err := r.startWriters(ctx, fail)
	if err != nil {
		return err
	}
	defer writers.stop()
	kills := r.config.Kills
	steps := max(1, kills)
	if r.config.Faults != nil {
		steps = kills
	}
	for step := range steps {
		if err := writers.reach(ctx, (step+1)*r.config.Transactions/(steps+1)); err != nil {
			return err
		}
		if step == steps/2 && r.config.Faults == nil {
			if err := r.consumer.restart(ctx); err != nil {
				return err
			}
		}
		if kills > 0 {
			if err := r.replicas.kill(ctx); err != nil {
				return err
			}
		}
	}
	if err := r.replicas.awaitMortals(ctx); err != nil {
		return err
	}
	if r.config.Faults != nil {
		if err := r.config.Faults(ctx, &Control{run: r, writers: writers}); err != nil {
			return fmt.Errorf("ledger: faults: %w", err)
		}
	}
	return writers.reach(ctx, r.config.Transactions)
}

// drain waits until the outbox is empty: nobody writes and nobody is killed any more.
func (r *run) drain(ctx context.Context) error {
	var waiting []string
	err := await(ctx, r.config.Patience, func() (empty bool, err error) {
		waiting, err = r.tables.waiting(ctx, r.db)
		if err != nil && r.config.Faults != nil && ctx.Err() == nil {
			return false, nil // a connection from before a restart; the next one is new
		}
		return len(waiting) == 0, err
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	left, describeErr := r.tables.describeWaiting(ctx, r.db)
	return errors.Join(fmt.Errorf("ledger: the outbox is not empty: %w; %d rows are left, the first: %q%s",
		err, len(waiting), left, r.replicas.logs()), describeErr)
}

func (r *run) readDeliveries(ctx context.Context) error {
	for _, destination := range r.config.Destinations {
		deliveries, err := r.config.Broker.Deliveries(ctx, destination)
		if err != nil {
			return fmt.Errorf("ledger: %w", err)
		}
		for i := range deliveries {
			deliveries[i].Destination = destination
		}
		r.deliveries = append(r.deliveries, deliveries...)
	}
	return nil
}

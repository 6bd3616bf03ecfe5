package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-outbox/outbox"
)

// How often a transaction does what, out of 100.
const (
	inPlainSQL    = 25 // its events are written by SQL that names partition_key
	withSolo      = 10 // one more event without a partition key, by the three-column INSERT
	withSavepoint = 10 // it begins with events that it takes back
	rolledBack    = 15
	binary        = 20 // an event's payload cannot be text
)

const mostEvents = 3

// writers are the services that write to the outbox.
type writers struct {
	config Config
	db     *sql.DB
	// ledgerDB tells what became of a COMMIT that was not answered.
	ledgerDB  *sql.DB
	tables    tables
	book      *book
	publisher *outbox.Publisher

	cancel context.CancelFunc
	done   sync.WaitGroup
	count  atomic.Int64
}

func (r *run) startWriters(ctx context.Context, fail func(error)) (*writers, error) {
	publisher, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: r.config.Schema}, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &writers{
		config: r.config, db: r.writerDB, ledgerDB: r.db,
		tables: r.tables, book: r.book, publisher: publisher, cancel: cancel,
	}
	for i := range r.config.Writers {
		one := w.newWriter(fmt.Sprintf("w%d", i), uint64(i))
		w.done.Go(func() {
			if err := one.run(ctx); err != nil {
				fail(fmt.Errorf("ledger: writer %s: %w", one.name, err))
			}
		})
	}
	return w, nil
}

// reach waits until so many transactions were made.
func (w *writers) reach(ctx context.Context, transactions int) error {
	for w.count.Load() < int64(transactions) {
		if !pause(ctx, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// stop lets each writer finish its transaction.
func (w *writers) stop() {
	w.cancel()
	w.done.Wait()
}

func (w *writers) newWriter(name string, part uint64) *writer {
	return &writer{writers: w, name: name, rand: w.config.random(part)}
}

type writer struct {
	*writers

	name   string
	rand   *rand.Rand
	serial int64
	solo   int64
	// written is what the transaction at hand has written.
	written []event
}

func (w *writer) run(ctx context.Context) error {
	for pause(ctx, time.Duration(w.rand.Int64N(int64(2*w.config.Pace)))) {
		w.written = nil
		if err := w.transaction(context.WithoutCancel(ctx)); err != nil {
			if err := w.tolerate(ctx, err); err != nil {
				return err
			}
			continue
		}
		w.count.Add(1)
	}
	return nil
}

// transaction changes one aggregate. The outbox rows are written while the
// aggregate's row is locked, as the order within a unit asks for.
func (w *writer) transaction(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.config.Patience)
	defer cancel()
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback()

	key := w.rand.IntN(w.config.Keys)
	if w.chance(withSavepoint) {
		if err := w.takeBack(ctx, tx, key); err != nil {
			return err
		}
	}
	events, err := w.change(ctx, tx, key)
	if err != nil {
		return err
	}
	if w.chance(withSolo) {
		solo, err := w.writeSolo(ctx, tx)
		if err != nil {
			return err
		}
		events = append(events, solo)
	}
	if w.chance(rolledBack) {
		return w.rollBack(ctx, tx, key, events)
	}
	return w.commit(ctx, tx, events)
}

func (w *writer) commit(ctx context.Context, tx *sql.Tx, events []event) error {
	var c commit
	err := tx.QueryRowContext(ctx, `SELECT pg_catalog.currval(pg_catalog.pg_get_serial_sequence($1, 'seq'))`, w.tables.outbox).Scan(&c.seq)
	if err != nil {
		return fmt.Errorf("last seq: %w", err)
	}
	c.began = w.book.tick()
	if err := tx.Commit(); err != nil {
		if err := w.resolve(ctx, events[0], fmt.Errorf("commit: %w", err)); err != nil {
			return err
		}
	}
	c.ended = w.book.tick()
	w.book.commit(c, events)
	return nil
}

// rollBack ends the transaction in one of the ways in which that happens.
func (w *writer) rollBack(ctx context.Context, tx *sql.Tx, key int, events []event) error {
	switch w.rand.IntN(3) {
	case 0: // the service changes its mind
	case 1: // a statement fails
		if err := w.insertBusinessRow(ctx, tx, events[0]); err == nil {
			return errors.New("a business row was inserted twice")
		}
	default: // after more work
		more, err := w.change(ctx, tx, key)
		if err != nil {
			return err
		}
		events = append(events, more...)
	}
	if err := tx.Rollback(); err != nil {
		return fmt.Errorf("rollback: %w", err)
	}
	w.book.rollBack(events)
	return nil
}

// takeBack writes events and rolls back to before them, within the transaction.
func (w *writer) takeBack(ctx context.Context, tx *sql.Tx, key int) error {
	if _, err := tx.ExecContext(ctx, `SAVEPOINT before_change`); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	events, err := w.change(ctx, tx, key)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT before_change`); err != nil {
		return fmt.Errorf("rollback to savepoint: %w", err)
	}
	w.book.rollBack(events)
	return nil
}

// change is what a service does: it locks the aggregate, writes business rows and the
// events that tell of them.
func (w *writer) change(ctx context.Context, tx *sql.Tx, number int) ([]event, error) {
	key := keyName(number)
	count := 1 + w.rand.IntN(mostEvents)
	last, err := w.lockAggregate(ctx, tx, key, count)
	if err != nil {
		return nil, err
	}
	inSQL := w.chance(inPlainSQL)
	events := make([]event, count)
	for i := range events {
		events[i] = w.newEvent(event{
			destination:  w.destinationOf(number),
			partitionKey: key,
			key:          key,
			n:            last - int64(count-1-i),
			metadata:     newMetadata(key),
		}, !inSQL && w.chance(binary))
		if err := w.insertBusinessRow(ctx, tx, events[i]); err != nil {
			return nil, err
		}
	}
	if inSQL {
		return events, w.insertKeyed(ctx, tx, events)
	}
	return events, w.publish(ctx, tx, events)
}

// lockAggregate returns the number of the last of so many events.
func (w *writer) lockAggregate(ctx context.Context, tx *sql.Tx, key string, count int) (last int64, err error) {
	err = tx.QueryRowContext(ctx, `UPDATE `+w.tables.aggregates+` SET n = n + $2 WHERE key = $1 RETURNING n`, key, count).Scan(&last)
	if err != nil {
		return 0, fmt.Errorf("lock aggregate: %w", err)
	}
	return last, nil
}

func (w *writer) destinationOf(aggregate int) string {
	return w.config.Destinations[aggregate%len(w.config.Destinations)]
}

// writeSolo is mission.md's producer: three columns, and each event a unit of its own.
func (w *writer) writeSolo(ctx context.Context, tx *sql.Tx) (event, error) {
	w.solo++
	e := w.newEvent(event{
		destination: w.config.Destinations[w.rand.IntN(len(w.config.Destinations))],
		key:         "solo-" + w.name,
		n:           w.solo,
	}, false)
	if err := w.insertBusinessRow(ctx, tx, e); err != nil {
		return e, err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO `+w.tables.outbox+` (id, destination, payload) VALUES ($1, $2, $3)`,
		e.id, e.destination, string(e.payload))
	if err != nil {
		return e, fmt.Errorf("insert of three columns: %w", err)
	}
	return e, nil
}

func (w *writer) insertBusinessRow(ctx context.Context, tx *sql.Tx, e event) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO `+w.tables.events+` (event_id, key, n) VALUES ($1, $2, $3)`, e.id, e.key, e.n)
	if err != nil {
		return fmt.Errorf("business row: %w", err)
	}
	return nil
}

func (w *writer) insertKeyed(ctx context.Context, tx *sql.Tx, events []event) error {
	for _, e := range events {
		metadata, err := json.Marshal(e.metadata)
		if err != nil {
			panic(err) // strings always marshal
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO `+w.tables.outbox+` (id, destination, partition_key, payload, metadata)
			VALUES ($1, $2, $3, $4, $5)`, e.id, e.destination, e.partitionKey, string(e.payload), string(metadata))
		if err != nil {
			return fmt.Errorf("insert with partition key and metadata: %w", err)
		}
	}
	return nil
}

// publish takes the publisher's ways in turn: all at once, or one after another.
func (w *writer) publish(ctx context.Context, tx *sql.Tx, events []event) error {
	msgs := make([]*message.Message, len(events))
	for i, e := range events {
		msgs[i] = message.NewMessage(e.id, e.payload)
		msgs[i].SetContext(ctx)
		msgs[i].Metadata = e.metadata
	}
	if w.chance(50) {
		return w.publisher.PublishTx(ctx, tx, events[0].destination, msgs...)
	}
	inTx := w.publisher.InTx(tx)
	for _, msg := range msgs {
		if err := inTx.Publish(events[0].destination, msg); err != nil {
			return err
		}
	}
	return nil
}

// newEvent notes the event in the book before the database hears of it.
func (w *writer) newEvent(e event, binary bool) event {
	e.payload = w.newPayload(e.key, e.n, w.rand.IntN(200), binary)
	return w.noteEvent(e)
}

func (w *writer) noteEvent(e event) event {
	w.serial++
	e.id = fmt.Sprintf("%s-%d", w.name, w.serial)
	w.book.write(e)
	w.written = append(w.written, e)
	return e
}

// newMetadata says the key to the publisher; plain SQL names the column.
func newMetadata(key string) map[string]string {
	return map[string]string{
		outbox.PartitionKeyMetadata:  key,
		`"awkward\` + "\n\u00e9 key": `"a\b\\n\u00e9` + "\n\t\u2028\U0001f600",
	}
}

// content is the head of every payload, and all of it that the consumer reads.
type content struct {
	Key    string
	N      int64
	Filler string
}

func (w *writer) newPayload(key string, n int64, size int, binary bool) []byte {
	const awkward = `\\n\u00e9"é\` + "\n\t\u2028"
	filler := awkward + strings.Repeat(" ", size) + strconv.FormatInt(n, 10)
	payload, err := json.Marshal(content{Key: key, N: n, Filler: filler})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	if binary {
		payload = append(payload, '\n', 0, 0xff, byte(w.rand.Uint32()))
	}
	return payload
}

func (w *writer) chance(percent int) bool { return w.rand.IntN(100) < percent }

func keyName(number int) string { return fmt.Sprintf("key-%d", number) }

// pause reports whether ctx is still alive after the pause.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// databaseMargin is how much longer than PublishTimeout the database keeps the rows
// of a claim whose forwarder says nothing.
const databaseMargin = 5 * time.Second

// claimFunc takes rows out of the reach of others, until tx ends.
type claimFunc func(ctx context.Context, tx *sql.Tx) ([]row, error)

// forwardBatch claims, publishes and settles one batch in one transaction. The end of
// ctx gives up a claim, but not a batch that is being published: what is sent should
// be settled. An error leaves everything as it was before; what the broker has
// confirmed by then is sent again.
func (w *worker) forwardBatch(ctx context.Context, claim claimFunc) (out outcome, err error) {
	defer func() {
		if err != nil && !hasSQLState(err, lockNotAvailable) {
			w.claimer.marks.forget()
		}
	}()
	batchCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopOnCancel := context.AfterFunc(ctx, cancel)
	defer stopOnCancel()
	bound := w.config.PublishTimeout + 4*w.config.DatabaseTimeout
	timer := time.AfterFunc(bound, cancel)
	defer timer.Stop()

	tx, err := w.begin(batchCtx)
	if err != nil {
		return outcome{}, err
	}
	timer.Reset(bound) // waiting for a connection is not the batch's time
	defer func() {
		if rollbackErr := tx.Rollback(); rollbackErr != nil && !errors.Is(rollbackErr, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("rollback: %w", rollbackErr))
		}
	}()
	rows, err := claim(batchCtx, tx)
	if err != nil || len(rows) == 0 {
		return outcome{}, err
	}
	if !stopOnCancel() {
		return outcome{}, ctx.Err()
	}
	v := w.judge(rows, w.publish(batchCtx, rows))
	if w.config.Ordering == None && !w.probing && len(v.confirmed) < len(rows) {
		// Other claims have passed these rows while they were locked.
		defer w.claimer.marks.giveBack(onlyLane, rows[0].seq)
	}
	if err := w.settler.settle(batchCtx, tx, v.confirmed); err != nil {
		return v.outcome, err
	}
	if err := w.settler.delay(batchCtx, tx, v.delayed); err != nil {
		return v.outcome, err
	}
	if err := tx.Commit(); err != nil {
		return v.outcome, fmt.Errorf("commit: %w", err)
	}
	return v.outcome, nil
}

// begin starts a claim's transaction with bounds of our own: whatever the server's
// defaults and TCP keepalives are, a forwarder that is lost frees its rows in time.
func (w *worker) begin(ctx context.Context) (*sql.Tx, error) {
	tx, err := w.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if _, err := tx.ExecContext(ctx, w.boundsQuery); err != nil {
		return nil, errors.Join(fmt.Errorf("set timeouts: %w", err), tx.Rollback())
	}
	return tx, nil
}

// boundsQuery holds constants and whole numbers only. serverVersion is Postgres'
// server_version_num.
func boundsQuery(cfg Config, serverVersion int) string {
	const transactionTimeoutSince = 170000
	publish := cfg.PublishTimeout + databaseMargin
	statements := []string{
		fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", publish.Milliseconds()),
		fmt.Sprintf("SET LOCAL statement_timeout = %d", cfg.DatabaseTimeout.Milliseconds()),
		fmt.Sprintf("SET LOCAL lock_timeout = %d", max(1, cfg.DatabaseTimeout.Milliseconds()/10)),
		// What a session's other settings would make of payloads.
		"SET LOCAL bytea_output = hex",
		"SET LOCAL client_encoding = UTF8",
		// An outbox is empty most of the time, and so are its statistics. With a backlog the
		// planner would go by them, and read and sort all of the table at each claim.
		"SET LOCAL enable_seqscan = off",
		"SET LOCAL enable_bitmapscan = off",
		"SET LOCAL enable_sort = off",
		"SET LOCAL jit = off",
		// Functions and operators are Postgres' own, whoever else has made some.
		"SET LOCAL search_path = pg_catalog",
		// A policy that hides rows is an error: unseen, they would wait for ever.
		"SET LOCAL row_security = off",
	}
	if serverVersion >= transactionTimeoutSince {
		whole := publish + 4*cfg.DatabaseTimeout
		statements = append(statements, fmt.Sprintf("SET LOCAL transaction_timeout = %d", whole.Milliseconds()))
	}
	return strings.Join(statements, "; ")
}

// claim waits for rows that others have locked, but not again and again: after a wait
// that was in vain it passes them by for a while.
func (w *worker) claim(ctx context.Context, tx *sql.Tx) ([]row, error) {
	rows, err := w.claimer.claim(ctx, tx, time.Now().Before(w.passUntil))
	if hasSQLState(err, lockNotAvailable) {
		w.passUntil = time.Now().Add(w.config.RetryMax)
	}
	return rows, err
}

// publish returns one result for each row.
func (w *worker) publish(ctx context.Context, rows []row) []error {
	ctx, cancel := context.WithTimeout(ctx, w.config.PublishTimeout)
	defer cancel()
	results := make([]error, len(rows))
	msgs, places := w.sendable(rows, results)
	if len(msgs) == 0 {
		return results
	}
	for n, err := range publishBatch(ctx, w.publisher, msgs) {
		results[places[n]] = err
	}
	return results
}

// publishBatch returns one result for each message, whatever the publisher does.
func publishBatch(ctx context.Context, publisher BatchPublisher, msgs []Outgoing) []error {
	var answers []error
	err := recovered(func() error {
		answers = publisher.PublishBatch(ctx, msgs)
		return nil
	})
	if err == nil && len(answers) != len(msgs) {
		err = fmt.Errorf("%w: %d results for %d messages", errResultCount, len(answers), len(msgs))
	}
	if err != nil { // nobody knows which message was sent
		answers = make([]error, len(msgs))
		for i := range answers {
			answers[i] = Unavailable(err)
		}
	}
	return answers
}

// errBrokerAway is the result of a message that was not given to its broker.
var errBrokerAway = errors.New("forwarder: not sent, its broker is away")

// sendable returns the messages to publish and their places among the rows. A row that
// no message can be made of gets its result here, and so does what is behind it in its
// unit. What goes to a broker that is known to be away is not sent to it.
func (w *worker) sendable(rows []row, results []error) (msgs []Outgoing, places []int) {
	failed := map[Unit]bool{}
	for i, r := range rows {
		switch unit := r.outgoing.Unit(); {
		case failed[unit]:
			results[i] = ErrKeyHeld
		case r.unreadable != nil:
			results[i] = Refused(r.unreadable)
			failed[unit] = true
		case !w.probing && w.away.isAway(w.brokerOf(r)):
			results[i] = Unavailable(errBrokerAway)
			failed[unit] = true
		default:
			msgs = append(msgs, r.outgoing)
			places = append(places, i)
		}
	}
	return msgs, places
}

var errResultCount = errors.New("forwarder: the publisher broke its contract")

// storable makes an error's text fit for a text column.
func storable(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
}

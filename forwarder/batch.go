package forwarder

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// databaseMargin is how much longer than the publishing may take the database keeps the rows
// of a claim whose forwarder says nothing.
const databaseMargin = 5 * time.Second

// claimFunc takes rows out of the reach of others, until tx ends.
type claimFunc func(ctx context.Context, tx *sql.Tx) (claim, error)

// forwardBatch claims, publishes and settles one batch in one transaction. The end of
// ctx gives up a claim, but not a batch that is being published: what is sent should
// be settled. An error leaves everything as it was before; what the broker has
// confirmed by then is sent again.
func (w *worker) forwardBatch(ctx context.Context, turn claimFunc) (out outcome, err error) {
	var (
		taken claim
		v     verdict
	)
	defer func() { w.correctMarks(taken, v, err) }() // when the transaction has ended
	stretch := w.paces.stretch()
	batchCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopOnCancel := context.AfterFunc(ctx, cancel)
	defer stopOnCancel()
	bound := w.batchBound(stretch)
	timer := time.AfterFunc(bound, cancel)
	defer timer.Stop()

	tx, err := w.begin(batchCtx, stretch)
	if err != nil {
		return outcome{}, err
	}
	timer.Reset(bound) // waiting for a connection is not the batch's time
	defer func() {
		if rollbackErr := tx.Rollback(); rollbackErr != nil && !errors.Is(rollbackErr, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("rollback: %w", rollbackErr))
		}
	}()
	taken, err = w.claimAndRehearse(batchCtx, tx, turn)
	if err != nil || len(taken.rows)+taken.parked == 0 {
		return outcome{barred: len(taken.lanes) == 0}, err
	}
	if !stopOnCancel() {
		return outcome{}, ctx.Err()
	}
	if err := batchCtx.Err(); err != nil { // the driver came back too late
		return outcome{}, fmt.Errorf("claim: %w", err)
	}
	if len(taken.rows) > 0 {
		w.lookout.took(w, taken)
		defer w.lookout.landed(w)
		w.learnHeat(taken)
		w.inHand.Store(true)
		defer w.inHand.Store(false)
		w.publishing.Store(true)
		done := w.publish(batchCtx, ctx, taken.rows, stretch)
		w.publishing.Store(false)
		v = w.judge(taken.rows, done)
	}
	v.claimed += taken.parked
	if err := w.settler.write(batchCtx, tx, &v); err != nil {
		w.rehearseAfter(err)
		return v.outcome, err
	}
	if w.streams {
		v.left = v.leftOf(taken.rows)
	}
	if err := tx.Commit(); err != nil {
		return v.outcome, fmt.Errorf("commit: %w", err)
	}
	w.tell(&v)
	return v.outcome, nil
}

// correctMarks has rows read again that were not settled.
func (w *worker) correctMarks(taken claim, v verdict, err error) {
	if err != nil && !hasSQLState(err, lockNotAvailable) && !hasSQLState(err, queryCanceled) {
		w.claimer.marks.forget()
	}
	if w.config.Ordering == None && !w.probing && len(v.confirmed) < len(taken.rows) {
		// Other claims have passed these rows while they were locked.
		w.claimer.marks.giveBack(onlyLane, taken.rows[0].seq)
	}
}

// begin starts a claim's transaction with bounds of our own: whatever the server's
// defaults and TCP keepalives are, a forwarder that is lost frees its rows in time.
func (w *worker) begin(ctx context.Context, stretch int) (*sql.Tx, error) {
	tx, err := w.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if hasSQLState(err, featureNotSupported) {
		err = fmt.Errorf("%w: %w", errStandby, err)
	}
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if _, err := tx.ExecContext(ctx, boundsQuery(w.config, w.serverVersion, stretch)); err != nil {
		return nil, errors.Join(fmt.Errorf("set timeouts and lock the table: %w", err), tx.Rollback())
	}
	return tx, nil
}

// boundsQuery holds constants, whole numbers and the table's name only. serverVersion is Postgres'
// server_version_num, stretch how many times PublishTimeout the publishing may take.
func boundsQuery(cfg Config, serverVersion, stretch int) string {
	const transactionTimeoutSince = 170000
	publish := cfg.PublishTimeout*time.Duration(stretch) + databaseMargin
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
	// As every query does; but already the first one is to know which table it is.
	statements = append(statements, `LOCK TABLE `+cfg.Schema.Outbox()+` IN ACCESS SHARE MODE`)
	return strings.Join(statements, "; ")
}

// claim waits for rows that others have locked, but not again and again: after a wait
// that was in vain it passes them by for a while.
func (w *worker) claim(ctx context.Context, tx *sql.Tx) (claim, error) {
	ask := w.nextRequest(time.Now())
	taken, err := w.claimer.claim(ctx, tx, ask)
	if err == nil && len(ask.tried) > 0 && len(taken.rows)+taken.parked == 0 { // all have been tried
		w.tried = nil
		w.leaveNoneOut(&ask)
		taken, err = w.claimer.claim(ctx, tx, ask)
	}
	if hasSQLState(err, lockNotAvailable) {
		w.passUntil = time.Now().Add(w.config.RetryMax)
	}
	w.lookSoon = err == nil && ask.waiting && taken.more
	return taken, err
}

// dueInterval is how often rows that wait are looked for.
const dueInterval = 50 * time.Millisecond

// nextRequest looks for rows that wait from time to time, and at once where there are known
// to be some. Where a broker is to be tried with a single row, it is not always one of those.
func (w *worker) nextRequest(now time.Time) request {
	ask := request{rows: w.config.BatchSize, passing: now.Before(w.passUntil), lane: w.lane}
	w.lane = anyLane
	if w.routes == nil {
		ask.rows, _ = w.paces.of("").now()
	}
	if ask.rows == 1 {
		ask.tried = w.tried
	}
	w.mindHeat(&ask)
	looks := w.lookSoon || now.Sub(w.lookedAt) >= dueInterval
	ask.waiting = looks && (ask.rows > 1 || !w.lookedLast)
	w.lookedLast = ask.waiting
	if ask.waiting {
		w.lookedAt = now
	}
	return ask
}

// storable makes an error's text fit for a text column.
func storable(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
}

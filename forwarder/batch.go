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

// forwardBatch claims, publishes and settles one batch in one transaction. The end of
// ctx gives up a claim, but not a batch that is being published: what is sent should
// be settled. An error leaves everything as it was before; what the broker has
// confirmed by then is sent again.
func (w *worker) forwardBatch(ctx context.Context) (out outcome, err error) {
	cfg := w.config
	batchCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.PublishTimeout+4*cfg.DatabaseTimeout)
	defer cancel()
	keepOnCancel := context.AfterFunc(ctx, cancel)

	tx, err := w.begin(batchCtx)
	if err != nil {
		return outcome{}, err
	}
	defer func() {
		if rollbackErr := tx.Rollback(); rollbackErr != nil && !errors.Is(rollbackErr, sql.ErrTxDone) {
			err = errors.Join(err, fmt.Errorf("rollback: %w", rollbackErr))
		}
	}()
	rows, err := w.claimer.claim(batchCtx, tx, w.away.destinations())
	if err != nil || len(rows) == 0 {
		return outcome{}, err
	}
	if !keepOnCancel() {
		return outcome{}, ctx.Err()
	}
	v := w.judge(rows, w.publish(batchCtx, rows))
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

// boundsQuery consists of whole numbers only. serverVersion is Postgres'
// server_version_num.
func boundsQuery(cfg Config, serverVersion int) string {
	const transactionTimeoutSince = 170000
	publish := cfg.PublishTimeout + databaseMargin
	statements := []string{
		fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", publish.Milliseconds()),
		fmt.Sprintf("SET LOCAL statement_timeout = %d", cfg.DatabaseTimeout.Milliseconds()),
		fmt.Sprintf("SET LOCAL lock_timeout = %d", max(1, cfg.DatabaseTimeout.Milliseconds()/2)),
	}
	if serverVersion >= transactionTimeoutSince {
		whole := publish + 4*cfg.DatabaseTimeout
		statements = append(statements, fmt.Sprintf("SET LOCAL transaction_timeout = %d", whole.Milliseconds()))
	}
	return strings.Join(statements, "; ")
}

// publish returns one result for each row.
func (w *worker) publish(ctx context.Context, rows []row) []error {
	ctx, cancel := context.WithTimeout(ctx, w.config.PublishTimeout)
	defer cancel()
	msgs := make([]Outgoing, len(rows))
	for i, r := range rows {
		msgs[i] = r.outgoing
	}
	var results []error
	err := recovered(func() error {
		results = w.publisher.PublishBatch(ctx, msgs)
		return nil
	})
	if err == nil && len(results) == len(rows) {
		return results
	}
	if err == nil {
		err = fmt.Errorf("%w: %d results for %d messages", errResultCount, len(results), len(rows))
	}
	// Nobody knows which message was sent, so none counts as confirmed.
	results = make([]error, len(rows))
	for i := range results {
		results[i] = Unavailable(err)
	}
	return results
}

var errResultCount = errors.New("forwarder: the publisher broke its contract")

// storable makes an error's text fit for a text column.
func storable(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "\uFFFD")
}

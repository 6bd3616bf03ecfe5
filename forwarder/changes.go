package forwarder

import (
	"context"
	"crypto/md5" //nolint:gosec // what the table's unit_hash is made of
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/schema"
)

// A forwarder with a Source takes rows from a stream of changes. It locks each in the table, as one
// that was read there: what is gone, somebody else has settled, before a restart or at this
// moment, and what waits there has its own time. So nothing of what went before has to be known.

// changesQueries claim rows that a stream has brought.
type changesQueries struct {
	lanes    string
	snapshot string
	lock     string
	park     string
}

func newChangesQueries(cfg Config) changesQueries {
	outbox := cfg.Schema.Outbox()
	return changesQueries{
		// In the order of lanes, so that no two wait for each other.
		lanes: fmt.Sprintf(`SELECT count(pg_advisory_xact_lock(%d::bigint + mine.lane)), pg_current_snapshot()::text FROM (
				SELECT DISTINCT hash & (s.lanes - 1) AS lane FROM %s AS s, unnest($1::integer[]) AS u (hash) ORDER BY 1 OFFSET 0
			) AS mine`, cfg.Schema.LockBase(), cfg.Schema.Settings()),
		snapshot: `SELECT pg_current_snapshot()::text`,
		// What others have locked is waited for, without order too: they may leave it as it is.
		lock: `SELECT seq, id, destination, attempts, last_error IS NULL FROM ` + outbox + `
			WHERE seq = ANY ($1::bigint[]) AND published_at IS NULL AND next_attempt_at IS NULL ORDER BY seq FOR UPDATE`,
		park: `UPDATE ` + outbox + ` SET next_attempt_at = clock_timestamp() WHERE seq = ANY ($1::bigint[])`,
	}
}

// rowOf is a change as a row.
func rowOf(c Change) row {
	key := c.PartitionKey
	if key == "" {
		key = c.ID
	}
	r := row{
		seq:      c.Seq,
		id:       c.ID,
		unitHash: unitHash(c.Destination, key),
		bytes:    len(c.Payload) + len(c.Metadata) + len(c.PartitionKey),
		outgoing: Outgoing{Destination: c.Destination, PartitionKey: key},
	}
	r.fill(content{bytes: c.Payload, metadata: c.Metadata})
	return r
}

// unitHash is the table's column of that name.
func unitHash(destination, key string) int64 {
	sum := md5.Sum([]byte(destination + "\x1f" + key))    //nolint:gosec // it hides nothing
	return int64(int32(binary.BigEndian.Uint32(sum[:4]))) //nolint:gosec // its bits are meant
}

// errNotVisible says that a transaction is in the log, and not to be seen yet: a moment later it is,
// or when the standbys have it for which commits wait.
var errNotVisible = errors.New("forwarder: a transaction is not visible yet")

// claimChanges locks the rows of changes that are still to be sent, and puts those aside that have to wait.
// What it returns is in the order of the changes. A row that is not there is gone: its transaction
// was visible when a statement before had its snapshot.
func (c claimer) claimChanges(ctx context.Context, tx *sql.Tx, changed []*change) (claim, error) {
	hashes, seqs := make(pq.Int64Array, len(changed)), make(pq.Int64Array, len(changed))
	for i, r := range changed {
		hashes[i], seqs[i] = r.unitHash, r.seq
	}
	seen, err := c.lockLanesOf(ctx, tx, hashes)
	if err != nil {
		return claim{}, err
	}
	for i, r := range changed {
		if (i == 0 || r.transaction != changed[i-1].transaction) && !seen.sees(r.transaction) {
			return claim{}, errNotVisible
		}
	}
	flowing, err := c.lockChanges(ctx, tx, changed, seqs)
	if err != nil {
		return claim{}, fmt.Errorf("lock rows: %w", err)
	}
	if c.config.Ordering == PerKey {
		if err := c.holdBack(ctx, tx, &flowing, dueRows{}); err != nil {
			return claim{}, err
		}
	}
	if err := c.park(ctx, tx, flowing.held); err != nil {
		return claim{}, err
	}
	away, err := c.parkAway(ctx, tx, &flowing)
	return claim{rows: flowing.rows, parked: len(flowing.held) + away}, err
}

// lockLanesOf waits for the lanes of units, and returns its snapshot.
func (c claimer) lockLanesOf(ctx context.Context, tx *sql.Tx, hashes pq.Int64Array) (seen snapshot, err error) {
	if c.config.Ordering == None {
		if err := tx.QueryRowContext(ctx, c.changes.snapshot).Scan(&seen); err != nil {
			return snapshot{}, fmt.Errorf("read the snapshot: %w", err)
		}
		return seen, nil
	}
	var locked int
	if err := tx.QueryRowContext(ctx, c.changes.lanes, hashes).Scan(&locked, &seen); err != nil {
		return snapshot{}, fmt.Errorf("lock lanes: %w", err)
	}
	if locked == 0 {
		return snapshot{}, fmt.Errorf("lock lanes: %w: %s is empty", schema.ErrNotMigrated, c.config.Schema.Settings())
	}
	return seen, nil
}

func (c claimer) lockChanges(ctx context.Context, tx *sql.Tx, changed []*change, seqs pq.Int64Array) (flowing flowRows, err error) {
	there := map[int64]row{}
	err = readAll(ctx, tx, c.changes.lock, func(rows *sql.Rows) error {
		var r row
		err := rows.Scan(&r.seq, &r.id, &r.outgoing.Destination, &r.attempts, &r.fresh)
		there[r.seq] = r
		return err //nolint:wrapcheck // claimChanges wraps it
	}, seqs)
	if err != nil {
		return flowRows{}, err
	}
	for _, changed := range changed {
		r := changed.row
		// After a TRUNCATE or a restore, another row may have its seq.
		if now, isThere := there[r.seq]; isThere && now.id == r.id && now.outgoing.Destination == r.outgoing.Destination {
			r.attempts, r.fresh = now.attempts, now.fresh && now.attempts == 0
			flowing.rows = append(flowing.rows, r)
		}
	}
	return flowing, nil
}

// parkAway has rows wait whose destinations are away, so that the stream goes on without them. They are
// due: whoever claims such rows knows what is away.
func (c claimer) parkAway(ctx context.Context, tx *sql.Tx, flowing *flowRows) (int, error) {
	away := c.marks.leftOut()
	if len(away) == 0 {
		return 0, nil
	}
	var seqs pq.Int64Array
	flowing.rows = slices.DeleteFunc(flowing.rows, func(r row) bool {
		isAway := slices.Contains(away, r.outgoing.Destination)
		if isAway {
			seqs = append(seqs, r.seq)
		}
		return isAway
	})
	if len(seqs) == 0 {
		return 0, nil
	}
	result, err := tx.ExecContext(ctx, c.changes.park, seqs)
	if err != nil {
		return 0, fmt.Errorf("park rows whose destination is away: %w", err)
	}
	return len(seqs), requireAffected(result, len(seqs))
}

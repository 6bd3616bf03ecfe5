package suite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-outbox/outbox/benchmarks/internal/rig"
	"github.com/watermill-outbox/outbox/forwarder"
)

// bareLoop is a relay: what has to be done at least. It claims a batch, hands it over and
// deletes it, on the same table, through the same driver. It knows nothing of order, of
// metadata, of failures or of anything else.
func bareLoop(batchSize int) relay {
	return func(ctx context.Context, o *rig.Outbox, pub rig.Publisher, ready func()) error {
		ready()
		claim := fmt.Sprintf(`SELECT seq, id, destination, coalesce(partition_key, id), payload, metadata::text
			FROM %s ORDER BY seq LIMIT %d FOR UPDATE SKIP LOCKED`, o.Schema.Outbox(), batchSize)
		remove := `DELETE FROM ` + o.Schema.Outbox() + ` WHERE seq = ANY ($1::bigint[])`
		for ctx.Err() == nil {
			if err := bareBatch(context.WithoutCancel(ctx), o.DB, pub, claim, remove); err != nil {
				return err
			}
		}
		return nil
	}
}

// bareBatch comes back at once where there is nothing to do: it is measured while there is.
func bareBatch(ctx context.Context, db *sql.DB, pub rig.Publisher, claim, remove string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	seqs, msgs, err := bareClaim(ctx, tx, claim)
	if err != nil || len(seqs) == 0 {
		return err
	}
	if err := errors.Join(pub.PublishBatch(ctx, msgs)...); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, remove, pq.Int64Array(seqs)); err != nil {
		return err
	}
	return tx.Commit()
}

func bareClaim(ctx context.Context, tx *sql.Tx, claim string) (seqs []int64, msgs []forwarder.Outgoing, err error) {
	rows, err := tx.QueryContext(ctx, claim)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			seq          int64
			id, metadata string
			payload      []byte
			outgoing     forwarder.Outgoing
		)
		if err := rows.Scan(&seq, &id, &outgoing.Destination, &outgoing.PartitionKey, &payload, &metadata); err != nil {
			return nil, nil, err
		}
		outgoing.Message = message.NewMessage(id, payload)
		seqs, msgs = append(seqs, seq), append(msgs, outgoing)
	}
	return seqs, msgs, rows.Err()
}

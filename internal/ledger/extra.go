package ledger

import (
	"context"
	"fmt"
	"maps"
)

// Extra is an event that a fault writes itself, as one that cannot be delivered.
type Extra struct {
	// Size is how many bytes it has, some more.
	Size int
	// Metadata has further entries.
	Metadata map[string]string
}

// partControl: the writers have the numbers from 0.
const partControl = partReplicas + 1

// Write commits, in one transaction of its own, events of the aggregate with that number,
// below Config.Keys. It is plain SQL, which has no limits but the table's own.
func (c *Control) Write(ctx context.Context, aggregate int, events ...Extra) error {
	if c.extra == nil {
		c.extra = c.writers.newWriter("extra", partControl)
	}
	return c.extra.writeExtra(ctx, aggregate, events)
}

func (w *writer) writeExtra(ctx context.Context, aggregate int, extras []Extra) error {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback()
	key := keyName(aggregate)
	last, err := w.lockAggregate(ctx, tx, key, len(extras))
	if err != nil {
		return err
	}
	events := make([]event, len(extras))
	for i, extra := range extras {
		n := last - int64(len(extras)-1-i)
		e := w.noteEvent(event{
			destination:  w.destinationOf(aggregate),
			partitionKey: key,
			key:          key,
			n:            n,
			payload:      w.newPayload(key, n, extra.Size, false),
			metadata:     newMetadata(key),
		})
		maps.Copy(e.metadata, extra.Metadata)
		if err := w.insertBusinessRow(ctx, tx, e); err != nil {
			return err
		}
		events[i] = e
	}
	if err := w.insertKeyed(ctx, tx, events); err != nil {
		return err
	}
	return w.commit(ctx, tx, events)
}

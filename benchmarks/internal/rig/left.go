package rig

import (
	"context"
	"fmt"
)

// Left is what a drain leaves in an outbox table that is empty.
type Left struct{ DeadTuples, TableBytes, IndexBytes float64 }

// LeftBehind looks at an outbox whose forwarder has ended. It closes the connections: the
// server's counters are complete once their sessions have ended.
func (o *Outbox) LeftBehind(ctx context.Context) (left Left, err error) {
	o.DB.SetMaxIdleConns(0)
	defer o.DB.SetMaxIdleConns(idleConnections)
	err = await(ctx, func() (bool, error) {
		others, err := o.Number(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = current_setting('application_name') AND backend_xmin IS NULL AND pid <> pg_backend_pid()`)
		return others == 0, err
	})
	if err != nil {
		return left, err
	}
	err = o.DB.QueryRowContext(ctx, `SELECT pg_stat_get_dead_tuples(c.oid), pg_table_size(c.oid), pg_indexes_size(c.oid)
		FROM pg_class AS c WHERE c.oid = $1::text::regclass`, o.Schema.Outbox()).Scan(&left.DeadTuples, &left.TableBytes, &left.IndexBytes)
	if err != nil {
		return left, fmt.Errorf("what is left behind: %w", err)
	}
	return left, nil
}

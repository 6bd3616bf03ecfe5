package forwarder

import (
	"context"
	"database/sql/driver"
)

// dropConnections has the pool open new ones. After a failover its idle ones may lead to a
// server that is no longer the primary: it still answers, and takes no writes.
func (w *worker) dropConnections(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.config.DatabaseTimeout)
	defer cancel()
	for range w.db.Stats().Idle {
		conn, err := w.db.Conn(ctx)
		if err != nil {
			return
		}
		// The pool closes a connection of which its driver says so. Raw returns what it is told.
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close() // it is closed already
	}
}

// Package pgxtx lets services on native pgx use the outbox and the inbox: it makes a
// pgx.Tx an outbox.Tx, and begins the inbox's transactions on a pgxpool. Services on
// database/sql, with pgx's driver too, do not need it.
//
// Publish in a transaction of your own:
//
//	err := publisher.PublishTx(ctx, pgxtx.Wrap(tx), "orders", msg)
//
// Receive through a pgxpool; the handler finds its pgx.Tx in the message's context:
//
//	once, err := middleware.NewInbox(middleware.InboxConfig{Beginner: pgxtx.NewBeginner(pool)}, logger)
//
//	tx, ok := outbox.TxFromContext[pgx.Tx](msg.Context())
//
// Any QueryExecMode works. What takes a *sql.DB (the migration, retention, the
// forwarder) takes stdlib.OpenDBFromPool(pool), from pgx's own package stdlib, which
// shares the pool.
package pgxtx

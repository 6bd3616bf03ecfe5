package outbox

import (
	"context"
	"database/sql"
)

// Tx is the caller's transaction. *sql.Tx satisfies it; *sql.DB does not, so that
// publishing outside a transaction does not compile; package pgxtx makes one of a
// pgx.Tx. This module calls only ExecContext on it: the caller commits or rolls back. (The
// inbox middleware ends transactions, but those that it has begun itself.)
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
	Rollback() error
}

type txContextKey struct{}

// ContextWithTx returns a context that carries tx, for Publisher.Publish and for
// TxFromContext. The transaction must not be used after the caller has ended it.
func ContextWithTx(ctx context.Context, tx Tx) context.Context {
	return context.WithValue(ctx, txContextKey{}, tx)
}

// TxFromContext returns the transaction that ContextWithTx put into ctx, as T:
// *sql.Tx, or pgx.Tx with package pgxtx. Where the transaction is a wrapper with a
// method Unwrap() any, what it wraps is tried as well. The result is false where there
// is no transaction, or none of that type.
func TxFromContext[T any](ctx context.Context) (T, bool) {
	value := ctx.Value(txContextKey{})
	for value != nil {
		if tx, ok := value.(T); ok {
			return tx, true
		}
		wrapper, ok := value.(interface{ Unwrap() any })
		if !ok {
			break
		}
		value = wrapper.Unwrap()
	}
	var none T
	return none, false
}

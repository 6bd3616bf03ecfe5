package outbox_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

type wrapper struct {
	outbox.Tx

	inner any
}

func (w wrapper) Unwrap() any { return w.inner }

type native struct{ name string }

func TestTxFromContext(t *testing.T) {
	t.Parallel()
	db := testdb.NewEmpty(t)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()

	_, ok := outbox.TxFromContext[*sql.Tx](t.Context())
	require.False(t, ok)

	ctx := outbox.ContextWithTx(t.Context(), tx)
	got, ok := outbox.TxFromContext[*sql.Tx](ctx)
	require.True(t, ok)
	require.Same(t, tx, got)
	_, ok = outbox.TxFromContext[*native](ctx)
	require.False(t, ok)

	ctx = outbox.ContextWithTx(context.Background(), wrapper{Tx: tx, inner: wrapper{inner: &native{"inside"}}})
	inside, ok := outbox.TxFromContext[*native](ctx)
	require.True(t, ok)
	require.Equal(t, "inside", inside.name)
	asTx, ok := outbox.TxFromContext[outbox.Tx](ctx)
	require.True(t, ok)
	require.IsType(t, wrapper{}, asTx)
}

package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/inbox"
)

// errorLog keeps the first error that was not read yet.
type errorLog struct {
	watermill.NopLogger

	lines chan string
}

func (l errorLog) Error(msg string, err error, _ watermill.LogFields) {
	select {
	case l.lines <- fmt.Sprint(msg, ": ", err):
	default:
	}
}

// Several replicas delete again and again, go on after a table was away, and end with their
// context.
func TestRunRetention(t *testing.T) {
	t.Parallel()
	forEachDriver(t, func(t *testing.T, b *testBundle) {
		log := errorLog{lines: make(chan string, 1)}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var replicas sync.WaitGroup
		for range 3 {
			replicas.Go(func() { b.store.RunRetentionEvery(ctx, 5*time.Millisecond, b.pool, 7*day, log) })
		}
		defer replicas.Wait()
		defer cancel()
		left := func(want int) {
			require.Eventually(t, func() bool { return b.count(t) == want }, wait, tick)
		}
		b.addKeys(t, "young", 5, 6*day)
		b.addKeys(t, "old", 2500, 8*day)
		left(5)

		_, err := b.db.ExecContext(t.Context(), `ALTER TABLE `+b.db.Schema.Inbox()+` RENAME TO hidden`)
		require.NoError(t, err)
		line := receive(t, log.lines)
		require.Contains(t, line, "Old keys of the inbox could not be deleted: ")
		require.Contains(t, line, b.db.Schema.Inbox())
		_, err = b.db.ExecContext(t.Context(), `ALTER TABLE `+strings.ReplaceAll(b.db.Schema.Inbox(), `"inbox"`, `"hidden"`)+` RENAME TO inbox`)
		require.NoError(t, err)
		b.addKeys(t, "old again", 10, 8*day)
		left(5)
	})
}

func TestRunRetention_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := setup(t, "postgres")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.store.RunRetention(ctx, b.pool, 7*day, nil) }()
	cancel()
	require.NoError(t, receive(t, done))
	for _, age := range []time.Duration{0, -1} {
		require.ErrorIs(t, b.store.RunRetention(t.Context(), b.pool, age, nil), inbox.ErrInvalidAge)
	}
}

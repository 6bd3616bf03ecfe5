package middleware_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
)

// A host that is lost in the midst of a handler holds the event's key until Postgres gives
// its session up. Where the message's context has a deadline, that is soon after it,
// whatever TCP says.
func TestInbox_LostHostIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		session string
		timeout time.Duration
		want    string
	}{
		"beyond the deadline":                  {session: "0", timeout: 30 * time.Second, want: "64s"},
		"of a long handler":                    {session: "0", timeout: 20 * time.Minute, want: "2048s"},
		"of the longest handler":               {session: "0", timeout: 20 * 24 * time.Hour, want: "2097152s"},
		"no bound that Postgres has":           {session: "0", timeout: 50 * 24 * time.Hour, want: "0s"},
		"the session's closer bound":           {session: "20s", timeout: 30 * time.Second, want: "20s"},
		"the session's farther bound":          {session: "1d", timeout: 30 * time.Second, want: "64s"},
		"no deadline":                          {session: "0", want: "0s"},
		"no deadline, but the session's bound": {session: "90s", want: "90s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDriver(t, func(t *testing.T, b *testBundle) {
				dsn := testdb.WithSetting(t, b.db.DSN, "idle_in_transaction_session_timeout", test.session)
				b.open(t, dsn, 1)
				ctx := t.Context()
				if test.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.timeout)
					defer cancel()
				}
				const seconds = `SELECT extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)::bigint || 's'`
				var got, after string
				_, err := b.wrap(t, func(msg *message.Message) ([]*message.Message, error) {
					return nil, b.pool.scan(msg.Context(), seconds, &got)
				})(message.NewMessageWithContext(ctx, "1", nil))
				require.NoError(t, err)
				require.Equal(t, test.want, got)
				require.NoError(t, b.pool.scanDirect(t.Context(), `SELECT current_setting('idle_in_transaction_session_timeout')`, &after))
				require.Equal(t, test.session, after, "the session is as it was")
			})
		})
	}
}

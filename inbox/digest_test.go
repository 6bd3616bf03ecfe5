package inbox_test

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/inbox"
)

// Digests are stored: another algorithm or framing would turn every redelivery across
// an upgrade into ErrIDReused. The value was computed with
// printf '\0\0\0\0\0\0\0\6orders{"event":"created"}' | sha256sum.
func TestDigest_IsStable(t *testing.T) {
	t.Parallel()
	require.Equal(t, "cf607e1b5f2f56ac1f8a89b9a38dc0294b80f900db8ce3c083becfef8bbe49a7",
		hex.EncodeToString(inbox.Digest("orders", []byte(`{"event":"created"}`))))
}

func TestDigest_TellsDestinationFromPayload(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, inbox.Digest("ab", []byte("c")), inbox.Digest("a", []byte("bc")))
	require.NotEqual(t, inbox.Digest("", []byte("a")), inbox.Digest("a", nil))
	require.Equal(t, inbox.Digest("a", nil), inbox.Digest("a", []byte{}))
}

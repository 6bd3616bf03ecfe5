package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A message that fails alone is at fault where the broker takes others in between, soon if it
// does so reliably, and never if the next thing heard of it is a failure too.
func TestSuspectIsGuiltyWhereOthersPassInBetween(t *testing.T) {
	t.Parallel()
	tries := func(took, failed int, others bool) int {
		s := &suspects{}
		s.of("").add(took, failed)
		for n := 1; n <= 1000; n++ {
			if s.failed("", 1, false) {
				return n
			}
			s.heard("", others)
			s.heard("", !others) // only the first counts
		}
		return 0
	}
	require.Equal(t, 3, tries(recent, 0, true))
	half := tries(recent/2, recent/2, true)
	require.Greater(t, half, 9)
	require.Less(t, half, 15)
	require.Greater(t, tries(1, recent-1, true), 100)
	require.Zero(t, tries(recent, 0, false))
}

// Messages that are gone do not fill the memory for ever.
func TestSuspectsMakeRoom(t *testing.T) {
	t.Parallel()
	s := &suspects{}
	for seq := range int64(maxSuspects + 10) {
		s.failed("", seq, false)
		require.True(t, s.has(seq))
	}
	require.Len(t, s.bySeq, maxSuspects)
}

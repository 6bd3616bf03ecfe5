package forwarder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newTestPace(rows int) *pace {
	return newPace(Config{BatchSize: rows, PublishTimeout: time.Minute})
}

// A broker that needs a second for each message gets what it can take in half of its time,
// and not the same batch again and again.
func TestPaceConvergesOnASlowBroker(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]time.Duration{"slow": time.Second, "very slow": 50 * time.Second, "too slow": 90 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTestPace(500)
			confirmed, failedInARow := 0, 0
			for range 100 {
				rows, stretch := p.now()
				bound := time.Duration(stretch) * time.Minute
				s := sent{rows: rows, took: min(bound, time.Duration(rows)*each)}
				if time.Duration(rows)*each > bound {
					s.away, s.timedOut = true, true
					failedInARow++
				} else {
					s.confirmed = rows
					confirmed += rows
					failedInARow = 0
				}
				p.learn(s)
				require.Less(t, failedInARow, 4)
			}
			rows, _ := p.now()
			require.Less(t, rows, 500)
			require.GreaterOrEqual(t, confirmed, 90)
			require.Zero(t, failedInARow)
		})
	}
}

// One that answers soon gets whole batches again, and one that never does is not waited for
// longer and longer.
func TestPaceRecovers(t *testing.T) {
	t.Parallel()
	p := newTestPace(500)
	p.learn(sent{rows: 500, away: true})
	rows, stretch := p.now()
	require.Equal(t, []int{1, 1}, []int{rows, stretch})
	for range 20 {
		p.learn(sent{rows: 1, away: true, timedOut: true, took: time.Minute})
		_, stretch := p.now()
		require.LessOrEqual(t, stretch, maxStretch)
	}
	for range 12 {
		rows, _ := p.now()
		p.learn(sent{rows: rows, confirmed: rows, took: time.Millisecond})
	}
	rows, stretch = p.now()
	require.Equal(t, []int{500, 1}, []int{rows, stretch})
	p.learn(sent{rows: 500, confirmed: 40, away: true, timedOut: true, took: time.Minute})
	rows, _ = p.now()
	require.Equal(t, 40, rows, "what it managed in that time")
}

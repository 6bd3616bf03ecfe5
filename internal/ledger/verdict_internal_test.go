package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each test breaks balanced books in one way and expects to hear of that, and of
// nothing else.
func TestVerdictFindsNothingInBalancedBooks(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.deliveries = append(f.deliveries, f.deliveries[0]) // a duplicate is no violation
	require.Equal(t, Violations{}, f.verdict())
	require.Equal(t, 1, f.duplicates())
}

func TestVerdictCountsWaitingAndDeadAsNotLost(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.deliveries = f.deliveries[:1]
	f.effects, f.balances = map[string]int{"a1": 1}, map[string]int{"a": 1}
	f.waiting, f.dead = []string{"a2"}, []string{"solo"}
	require.Equal(t, Violations{}, f.verdict())
	f.dead = nil
	require.Equal(t, Violations{Lost: []string{"solo (s, n 1)"}}, f.verdict())
}

func TestVerdictFindsPhantom(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.committed = []string{"a1", "a2"}
	require.Equal(t, Violations{Phantoms: []string{"solo (s, n 1), delivered 1 times"}}, f.verdict())
}

func TestVerdictFindsDeliveryThatNobodyWrote(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.deliveries = append(f.deliveries, Delivery{ID: "x"})
	require.Equal(t, []string{`"x" (never written), delivered 1 times`}, f.verdict().Phantoms)
}

func TestVerdictFindsWrongOrder(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.deliveries[0], f.deliveries[1] = f.deliveries[1], f.deliveries[0]
	require.Equal(t, Violations{OutOfOrder: []string{"a1 (a, n 1) came after a2 (a, n 2)"}}, f.verdict())
	f.ordered = false
	require.Equal(t, Violations{}, f.verdict())
}

func TestVerdictFindsUnitInTwoQueues(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.deliveries[1].Queue = "q2"
	require.Equal(t, Violations{OutOfOrder: []string{"a2 (a, n 2) came through q2, earlier ones through q1"}}, f.verdict())
}

func TestVerdictFindsAlteredMessages(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.deliveries[0].Payload = []byte("other")
	f.deliveries[2].PartitionKey = "other"
	require.Equal(t, Violations{Altered: []string{
		`a1 (a, n 1) has the payload "other", want "1"`,
		`solo (s, n 1) has the key "other"`,
	}}, f.verdict())
}

func TestVerdictFindsWrongDestination(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.deliveries[1].Destination = "other"
	require.Equal(t, Violations{Altered: []string{`a2 (a, n 2) came to the destination "other", want "d"`}}, f.verdict())
}

func TestVerdictFindsAlteredMetadata(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.deliveries[0].Metadata = map[string]string{"x": `a\\b`}
	f.deliveries[1].Metadata = nil
	f.deliveries[2].Metadata = map[string]string{"more": ""}
	require.Equal(t, Violations{Altered: []string{
		`a1 (a, n 1) has the metadata map["x":"a\\\\b"], want map["x":"a\\b"]`,
		`a2 (a, n 2) has the metadata map[], want map["x":"2"]`,
		`solo (s, n 1) has the metadata map["more":""], want map[]`,
	}}, f.verdict())
}

func TestVerdictFindsWrongEffects(t *testing.T) {
	t.Parallel()
	f := balanced()
	f.effects = map[string]int{"a1": 2, "a2": 1}
	f.balances = map[string]int{"a": 3, "s": 1}
	require.Equal(t, Violations{
		MissingEffects: []string{"solo (s, n 1)"},
		DoubleEffects:  []string{"a1 (a, n 1) has 2"},
		WrongBalances:  []string{"a has 3, want 2"},
	}, f.verdict())
}

func TestReportNamesDuplicatesThatNoKillExplains(t *testing.T) {
	t.Parallel()
	require.Empty(t, Report{Kills: 1, Duplicates: 40, MaxDuplicates: 40}.Errors())
	require.Len(t, Report{Kills: 1, Duplicates: 41, MaxDuplicates: 40}.Errors(), 1)
	require.Len(t, Report{Kills: 1, SelfKills: 1, MaxDuplicates: 40}.Errors(), 1)
}

func TestCrossings(t *testing.T) {
	t.Parallel()
	b := newBook()
	b.commit(commit{seq: 1, began: 1, ended: 2}, nil)
	b.commit(commit{seq: 3, began: 3, ended: 5}, nil)
	b.commit(commit{seq: 4, began: 4, ended: 7}, nil) // overlaps with the one before: nobody knows
	require.Zero(t, b.crossings())
	b.commit(commit{seq: 2, began: 6, ended: 8}, nil)
	require.Equal(t, 1, b.crossings())
}

// balanced books: two events of a key, and one that is a unit of its own.
func balanced() facts {
	return facts{
		ordered: true,
		written: map[string]event{
			"a1":   {id: "a1", destination: "d", partitionKey: "a", key: "a", n: 1, payload: []byte("1"), metadata: map[string]string{"x": `a\b`}},
			"a2":   {id: "a2", destination: "d", partitionKey: "a", key: "a", n: 2, payload: []byte("2"), metadata: map[string]string{"x": "2"}},
			"solo": {id: "solo", destination: "e", key: "s", n: 1, payload: []byte("3")},
		},
		committed: []string{"a1", "a2", "solo"},
		deliveries: []Delivery{
			{Destination: "d", Queue: "q1", ID: "a1", PartitionKey: "a", Payload: []byte("1"), Metadata: map[string]string{"x": `a\b`}},
			{Destination: "d", Queue: "q1", ID: "a2", PartitionKey: "a", Payload: []byte("2"), Metadata: map[string]string{"x": "2"}},
			{Destination: "e", Queue: "q2", ID: "solo", PartitionKey: "solo", Payload: []byte("3"), Metadata: map[string]string{}},
		},
		effects:  map[string]int{"a1": 1, "a2": 1, "solo": 1},
		balances: map[string]int{"a": 2, "s": 1},
	}
}

package forwarder_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

func TestStatsOfAnEmptyOutbox(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		stats, err := b.admin.Stats(t.Context())
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), stats.TakenAt, time.Hour)
		stats.TakenAt = time.Time{}
		require.Equal(t, forwarder.Stats{}, stats)
	})
}

// What an operator sees at night.
func TestStats(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		outbox, dead := b.db.Schema.Outbox(), b.db.Schema.DeadLetters()
		insert(t, b.db, "orders", "a", "msg-a1", "a2", "a3")   // a1 fails, the others wait for it
		insert(t, b.db, "orders", "b", "b1", "b2", "b3", "b4") // b1 is dead and blocks
		insert(t, b.db, "orders", "c", "msg-c1")               // fails for the same reason
		insert(t, b.db, "payments", "d", "d1", "d2", "d3")     // d1 is published, d3 was held back
		insert(t, b.db, "payments", "e", "e1", "e2")           // dead, and do not block
		b.bury(t, `id = 'b1'`, true)
		b.bury(t, `partition_key = 'e'`, false)
		b.hold(t, `partition_key = 'b' OR id IN ('a2', 'a3')`)
		execute(t, b.db, `UPDATE `+outbox+` SET created_at = now() - interval '3 hours' WHERE id = 'd1'`)
		execute(t, b.db, `UPDATE `+outbox+` SET created_at = now() - interval '2 hours' WHERE id = 'msg-a1'`)
		execute(t, b.db, `UPDATE `+outbox+` SET created_at = now() - interval '1 hour' WHERE id = 'd2'`)
		execute(t, b.db, `UPDATE `+outbox+` SET published_at = now() WHERE id = 'd1'`)
		execute(t, b.db, `UPDATE `+outbox+` SET attempts = 3, last_error = 'msg-a1 has 17 bytes', next_attempt_at = now() + interval '1 hour' WHERE id = 'msg-a1'`)
		execute(t, b.db, `UPDATE `+outbox+` SET attempts = 5, last_error = 'msg-c1 has 23 bytes', next_attempt_at = now() + interval '2 hours' WHERE id = 'msg-c1'`)
		execute(t, b.db, `UPDATE `+outbox+` SET next_attempt_at = now() - interval '1 second' WHERE id = 'd3'`)
		execute(t, b.db, `INSERT INTO `+b.db.Schema.Absences()+` (kind, name, since, error) VALUES
			('destination', 'invoices', now() - interval '1 hour', 'no such topic'), ('broker', '', now() - interval '2 hours', 'connection refused')`)

		stats, err := b.admin.Stats(t.Context())
		require.NoError(t, err)
		exactly := func(n int64) forwarder.Count { return forwarder.Count{Rows: n} }
		require.Equal(t, exactly(9), stats.Backlog)
		require.InDelta(t, 2*time.Hour, stats.OldestAge, float64(10*time.Minute))
		require.Equal(t, exactly(2), stats.Due)
		require.Equal(t, exactly(2), stats.NotDue)
		require.Equal(t, exactly(5), stats.Held)

		require.Len(t, stats.Destinations, 2)
		require.Equal(t, "orders", stats.Destinations[0].Destination)
		require.Equal(t, exactly(7), stats.Destinations[0].Backlog)
		require.InDelta(t, 2*time.Hour, stats.Destinations[0].OldestAge, float64(10*time.Minute))
		require.Equal(t, "payments", stats.Destinations[1].Destination)
		require.Equal(t, exactly(2), stats.Destinations[1].Backlog)
		require.InDelta(t, time.Hour, stats.Destinations[1].OldestAge, float64(10*time.Minute))

		require.Len(t, stats.Failing, 1)
		require.InDelta(t, time.Hour, stats.Failing[0].Example.NextAttemptAt.Sub(stats.TakenAt), float64(10*time.Minute))
		stats.Failing[0].Example.NextAttemptAt = time.Time{}
		require.Equal(t, forwarder.FailingGroup{
			Destination: "orders", ErrorGroup: "<id> has <n> bytes", Count: 2, MostAttempts: 5,
			Example: forwarder.FailingMessage{Seq: 1, EventID: "msg-a1", PartitionKey: "a", Error: "msg-a1 has 17 bytes"},
		}, stats.Failing[0])

		require.Equal(t, exactly(3), stats.DeadLetters)
		require.Len(t, stats.DeadLetterGroups, 2)
		require.Equal(t, "payments", stats.DeadLetterGroups[0].Destination)
		require.EqualValues(t, 2, stats.DeadLetterGroups[0].Count)
		require.EqualValues(t, 1, stats.DeadLetterGroups[1].Blocking)
		require.Equal(t, exactly(1), stats.BlockedUnits)
		require.Len(t, stats.Blocked, 1)
		require.WithinDuration(t, stats.TakenAt, stats.Blocked[0].Since, time.Hour)
		stats.Blocked[0].Since = time.Time{}
		require.Equal(t, forwarder.BlockedUnit{
			Destination: "orders", PartitionKey: "b", DeadLetterID: 1, EventID: "b1", Error: "too large: 4", Held: exactly(3),
		}, stats.Blocked[0])

		require.Len(t, stats.Away, 2)
		require.Equal(t, "broker", stats.Away[0].Kind)
		require.Equal(t, "connection refused", stats.Away[0].Error)
		require.InDelta(t, time.Hour, stats.TakenAt.Sub(stats.Away[1].Since), float64(10*time.Minute))
		require.Equal(t, "invoices", stats.Away[1].Name)

		// Blocked is what to replay.
		require.EqualValues(t, 1, b.replay(t, forwarder.Filter{IDs: []int64{stats.Blocked[0].DeadLetterID}}))
		stats, err = b.admin.Stats(t.Context())
		require.NoError(t, err)
		require.Empty(t, stats.Blocked)
		require.Equal(t, exactly(0), stats.BlockedUnits)
		require.Equal(t, []string{"2"}, b.lines(t, `SELECT count(*)::text FROM `+dead))
	})
}

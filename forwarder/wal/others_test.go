package wal_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// What somebody takes out of the table before it is sent is not sent, and nothing waits for it.
func TestRowsThatAreGoneAreNotSent(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]string{
		"deleted":             `DELETE FROM {outbox} WHERE id IN ('a-2', 'a-3', 'b-1')`,
		"marked":              `UPDATE {outbox} SET published_at = now() WHERE id IN ('a-2', 'a-3', 'b-1')`,
		"all, truncated":      `TRUNCATE {outbox}`,
		"all, and begun anew": `TRUNCATE {outbox} RESTART IDENTITY`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			var b broker
			start(t, db, &b, newSource(t, db))
			requireStreaming(t, db)
			b.set(func() { b.gone = true })
			commit(t, db, "a", ids("a", 4)...)
			commit(t, db, "b", ids("b", 2)...)
			exec(t, db, outboxOf(db, remove))
			insertKeyed(t, db, db, "orders", "a", "a-5")
			insertKeyed(t, db, db, "orders", "b", "b-3")
			b.set(func() { b.gone = false })
			eventually(t, func() bool { return count(t, db, db.Schema.Outbox()+` WHERE published_at IS NULL`) == 0 })
			requireAllConfirmed(t, db)
			a, others := []string{"a-1", "a-4", "a-5"}, []string{"b-2", "b-3"}
			if name[:3] == "all" {
				a, others = []string{"a-5"}, []string{"b-3"}
			}
			require.Equal(t, a, b.of("a"))
			require.Equal(t, others, b.of("b"))
		})
	}
}

// A row that goes to another destination before it is sent goes there once, and its old unit goes on.
func TestRowThatIsSentElsewhere(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	b.set(func() { b.gone = true })
	commit(t, db, "a", ids("a", 3)...)
	exec(t, db, outboxOf(db, `UPDATE {outbox} SET destination = 'elsewhere', partition_key = 'b' WHERE id = 'a-2'`))
	b.set(func() { b.gone = false })
	requireDrained(t, db)
	require.Equal(t, []string{"a-1", "a-3"}, b.of("a"))
	require.Equal(t, []string{"a-2"}, b.of("b"))
}

// What a savepoint takes back never was, and has left holes in seq.
func TestSavepointThatIsRolledBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var b broker
	start(t, db, &b, newSource(t, db))
	requireStreaming(t, db)
	tx := begin(t, db)
	var want []string
	for _, id := range ids("a", 100) {
		insertKeyed(t, db, tx, "orders", "a", id)
		exec(t, tx, `SAVEPOINT s`)
		insertKeyed(t, db, tx, "orders", "a", "never-"+id)
		exec(t, tx, `ROLLBACK TO SAVEPOINT s`)
		exec(t, tx, `RELEASE SAVEPOINT s`)
		exec(t, tx, `SAVEPOINT kept`)
		insertKeyed(t, db, tx, "orders", "a", "kept-"+id)
		exec(t, tx, `RELEASE SAVEPOINT kept`)
		want = append(want, id, "kept-"+id)
	}
	require.NoError(t, tx.Commit())
	requireDrained(t, db)
	requireAllConfirmed(t, db)
	require.Equal(t, want, b.of("a"))
}

// Retention deletes what is marked while the stream brings more.
func TestRetentionBesideTheStream(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("retention begins within a minute")
	}
	db := testdb.New(t)
	var b broker
	run(t, db, &b, forwarder.Config{
		Source: newSource(t, db), Settlement: forwarder.MarkPublished, Retention: forwarder.Retention{Published: time.Nanosecond},
	})
	p := startProducers(t, db, 2)
	p.requireForwarded(t, &b, 2000)
	rows := func() int { return count(t, db, db.Schema.Outbox()) }
	most := 0
	eventually(t, func() bool { // it has deleted some
		now := rows()
		most = max(most, now)
		return now < most
	})
	p.requireForwarded(t, &b, 200)
	p.stop()
	eventually(t, func() bool { return count(t, db, db.Schema.Outbox()+` WHERE published_at IS NULL`) == 0 })
	requireAllConfirmed(t, db)
	for key, ids := range p.written {
		require.Equal(t, ids, b.of(key))
	}
}

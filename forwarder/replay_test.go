package forwarder_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

func (b *adminBundle) replay(t *testing.T, f forwarder.Filter) int64 {
	t.Helper()
	n, err := b.admin.Replay(t.Context(), f, forwarder.BulkOptions{})
	require.NoError(t, err)
	return n
}

func (b *adminBundle) discard(t *testing.T, f forwarder.Filter) int64 {
	t.Helper()
	n, err := b.admin.Discard(t.Context(), f, forwarder.BulkOptions{})
	require.NoError(t, err)
	return n
}

// hold makes rows wait behind others, as a claim does that meets them.
func (b *adminBundle) hold(t *testing.T, where string) {
	t.Helper()
	execute(t, b.db, `UPDATE `+b.db.Schema.Outbox()+` SET next_attempt_at = 'infinity' WHERE `+where)
}

func TestReplayToTheEnd(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insert(t, b.db, "orders", "a", "1", "2", "3")
		insert(t, b.db, "orders", "b", "4")
		_, err := b.db.ExecContext(t.Context(), `UPDATE `+b.db.Schema.Outbox()+`
			SET metadata = '{"k": "v"}', created_at = '2026-01-02 03:04:05Z', payload = NULL, payload_bytes = '\xff00' WHERE id = '2'`)
		require.NoError(t, err)
		b.bury(t, `id = '2'`, false)
		b.bury(t, `id = '1'`, false)
		b.bury(t, `id = '4'`, false)
		require.EqualValues(t, 3, b.replay(t, everything))
		require.Empty(t, b.dead(t))
		require.Equal(t, []string{"3:3:flows", "5:2:flows", "6:1:flows", "7:4:flows"}, b.outbox(t), "in the order in which they died")
		require.Equal(t, []string{`orders a ff00 {"k": "v"} 2026-01-02 03:04:05 0 - -`}, b.lines(t, `SELECT
				concat_ws(' ', destination, partition_key, encode(payload_bytes, 'hex'), metadata,
					to_char(timezone('UTC', created_at), 'YYYY-MM-DD HH24:MI:SS'), attempts,
					coalesce(next_attempt_at::text, '-'), coalesce(last_error, '-'))
			FROM `+b.db.Schema.Outbox()+` WHERE id = '2'`))
		insert(t, b.db, "orders", "a", "5")
		require.Equal(t, "8:5:flows", b.outbox(t)[4], "the sequence knows of them")
	})
}

func TestReplayAtTheHead(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insert(t, b.db, "orders", "a", "1", "2", "3", "4")
		insert(t, b.db, "orders", "b", "5", "6")
		b.bury(t, `id = '2'`, true)
		b.bury(t, `id IN ('1', '5')`, true)
		b.hold(t, `true`)

		dead := b.collect(t, forwarder.Filter{})
		require.EqualValues(t, 1, b.replay(t, forwarder.Filter{IDs: []int64{dead[1].ID}}))
		require.Equal(t, []string{"1:1:held", "3:3:held", "4:4:held", "6:6:held"}, b.outbox(t), "another still blocks the unit")

		require.EqualValues(t, 1, b.replay(t, forwarder.Filter{IDs: []int64{dead[0].ID}}))
		require.Equal(t, []string{"1:1:due", "2:2:held", "3:3:held", "4:4:held", "6:6:held"}, b.outbox(t))

		require.EqualValues(t, 1, b.replay(t, everything))
		require.Equal(t, []string{"1:1:due", "2:2:held", "3:3:held", "4:4:held", "5:5:due", "6:6:held"}, b.outbox(t))
		require.Empty(t, b.dead(t))
	})
}

// A row behind it that had a time of its own waits for it now.
func TestReplayAtTheHeadHoldsWhatIsBehind(t *testing.T) {
	t.Parallel()
	b := setupAdmin(t, "postgres")
	insert(t, b.db, "orders", "a", "1", "2", "3")
	insert(t, b.db, "orders", "b", "4")
	b.bury(t, `id = '1'`, true)
	execute(t, b.db, `UPDATE `+b.db.Schema.Outbox()+` SET next_attempt_at = now() + interval '1 hour' WHERE id IN ('2', '4')`)
	require.EqualValues(t, 1, b.replay(t, everything))
	require.Equal(t, []string{"1:1:due", "2:2:held", "3:3:flows", "4:4:waits"}, b.outbox(t))
}

// The seq is taken: by a row of another unit, by a row of the same one, or it is behind rows
// that are newer. Nothing is overtaken.
func TestReplayWhereThePlaceIsTaken(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		put := func(seq int, id, key string, held bool) {
			_, err := b.db.ExecContext(t.Context(), `INSERT INTO `+b.db.Schema.Outbox()+` (seq, id, destination, partition_key, payload, created_at, next_attempt_at)
				OVERRIDING SYSTEM VALUE VALUES ($1, $2, 'orders', $3, 'x', clock_timestamp(), CASE WHEN $4 THEN 'infinity'::timestamptz END)`, seq, id, key, held)
			require.NoError(t, err)
		}
		for i, id := range []string{"d1", "d2", "d3"} {
			put(100+i, id, "a", false)
		}
		b.bury(t, `true`, true)
		put(60, "other", "b", false)
		put(61, "new 1", "a", true)
		put(62, "other", "c", false)
		put(101, "new 2", "a", true)
		put(103, "new 3", "a", true)
		require.EqualValues(t, 3, b.replay(t, everything))
		require.Equal(t, []string{"57:d1:due", "58:d2:held", "59:d3:held", "60:other:flows", "61:new 1:held", "62:other:flows", "101:new 2:held", "103:new 3:held"}, b.outbox(t))
	})
}

// Rows fill everything from 1 on: it says so and leaves the dead letter where it is.
func TestReplayWhereNoPlaceIsFree(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insert(t, b.db, "orders", "a", "1")
		insert(t, b.db, "orders", "b", "2")
		b.bury(t, `id = '1'`, true)
		b.bury(t, `id = '2'`, false)
		execute(t, b.db, `TRUNCATE `+b.db.Schema.Outbox()+` RESTART IDENTITY`)
		insert(t, b.db, "orders", "a", "3", "4")
		n, err := b.admin.Replay(t.Context(), everything, forwarder.BulkOptions{})
		require.ErrorIs(t, err, forwarder.ErrNoPlace)
		require.EqualValues(t, 1, n, "what was committed before counts")
		require.Equal(t, []string{"1"}, b.dead(t))
		require.Equal(t, []string{"1:3:flows", "2:4:flows", "3:2:flows"}, b.outbox(t))
		execute(t, b.db, `DELETE FROM `+b.db.Schema.Outbox()+` WHERE id = '3'`)
		require.EqualValues(t, 1, b.replay(t, everything))
		require.Equal(t, []string{"1:1:due", "2:4:flows", "3:2:flows"}, b.outbox(t))
	})
}

func TestDiscardLetsTheUnitGoOn(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insert(t, b.db, "orders", "a", "1", "2", "3", "4")
		insert(t, b.db, "orders", "b", "5")
		insert(t, b.db, "orders", "c", "6", "7")
		b.bury(t, `id IN ('1', '2', '5')`, true)
		b.bury(t, `id = '6'`, false)
		b.hold(t, `id <> '7'`)
		letters := b.collect(t, everything)
		require.EqualValues(t, 1, b.discard(t, forwarder.Filter{IDs: []int64{letters[0].ID}}))
		require.Equal(t, []string{"3:3:held", "4:4:held", "7:7:flows"}, b.outbox(t), "another still blocks the unit")
		n, err := b.admin.Discard(t.Context(), everything, forwarder.BulkOptions{DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 3, n)
		require.Len(t, b.dead(t), 3)
		require.EqualValues(t, 3, b.discard(t, everything))
		require.Equal(t, []string{"3:3:due", "4:4:held", "7:7:flows"}, b.outbox(t))
		require.Empty(t, b.dead(t))
	})
}

// Many pages, and more lanes than one.
func TestReplayInPages(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insertMany(t, b.db, 5200, 40)
		b.bury(t, `seq <= 2600 AND seq % 2 = 0`, true)
		b.bury(t, `seq <= 2600`, false)
		b.hold(t, `seq % 2 = 0`)
		n, err := b.admin.Replay(t.Context(), everything, forwarder.BulkOptions{DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, 2600, n)
		require.EqualValues(t, 2600, b.replay(t, everything))
		require.Empty(t, b.dead(t))
		require.Equal(t, []string{"5200 5200"}, b.lines(t, `SELECT count(*) || ' ' || count(DISTINCT id) FROM `+b.db.Schema.Outbox()))
		require.Empty(t, b.lines(t, `SELECT o.id FROM `+b.db.Schema.Outbox()+` AS o WHERE (o.seq <= 5200) <> ('id-' || o.seq = o.id)`), "in their places, or at the end")
		require.Equal(t, []string{"20 1280"}, b.lines(t, `SELECT count(*) FILTER (WHERE next_attempt_at < 'infinity' AND seq <= 40) || ' ' ||
			count(*) FILTER (WHERE next_attempt_at = 'infinity' AND seq <= 2600) FROM `+b.db.Schema.Outbox()), "of each unit the first is due")
	})
}

// What blocks its unit waits for the forwarder at work on the lane; the end of ctx ends the
// wait, and nothing has changed. What does not block waits for nobody.
func TestReplayWaitsForTheLane(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insert(t, b.db, "orders", "a", "1")
		insert(t, b.db, "orders", "b", "2")
		b.bury(t, `id = '1'`, true)
		b.bury(t, `id = '2'`, false)
		worker, err := b.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer worker.Rollback()
		_, err = worker.ExecContext(t.Context(), `SELECT pg_advisory_xact_lock($1::bigint + n) FROM generate_series(0, 63) AS n`, b.db.Schema.LockBase())
		require.NoError(t, err)
		for _, run := range []func(context.Context) (int64, error){
			func(ctx context.Context) (int64, error) {
				return b.admin.Replay(ctx, everything, forwarder.BulkOptions{})
			},
			func(ctx context.Context) (int64, error) {
				return b.admin.Discard(ctx, everything, forwarder.BulkOptions{})
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := run(ctx)
				done <- err
			}()
			b.awaitWaiting(t, 1)
			require.Equal(t, []string{"1"}, b.dead(t))
			cancel()
			require.Error(t, <-done)
			b.awaitWaiting(t, 0)
			require.Equal(t, []string{"1"}, b.dead(t))
		}
		done := make(chan int64, 1)
		go func() {
			n, err := b.admin.Replay(t.Context(), everything, forwarder.BulkOptions{})
			if err != nil {
				t.Error(err)
			}
			done <- n
		}()
		b.awaitWaiting(t, 1)
		require.NoError(t, worker.Rollback())
		require.EqualValues(t, 1, <-done)
	})
}

// awaitWaiting waits until so many sessions wait for a lane of the outbox.
func (b *adminBundle) awaitWaiting(t *testing.T, want int) {
	t.Helper()
	eventually(t, func() bool {
		var waiting int
		err := b.db.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted AND (classid::bigint << 32) + objid::bigint - $1::bigint & -65536 = 0
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, b.db.Schema.LockBase()).Scan(&waiting)
		return err == nil && waiting == want
	})
}

// A dead letter that the outbox does not take, since somebody changed it, is not lost.
func TestReplayKeepsRowsThatCannotGoBack(t *testing.T) {
	t.Parallel()
	b := setupAdmin(t, "postgres")
	insert(t, b.db, "orders", "a", "1")
	b.bury(t, `true`, false)
	execute(t, b.db, `UPDATE `+b.db.Schema.DeadLetters()+` SET id = repeat('x', 300)`)
	n, err := b.admin.Replay(t.Context(), everything, forwarder.BulkOptions{})
	require.Error(t, err)
	require.Zero(t, n)
	require.Len(t, b.dead(t), 1)
	require.Empty(t, b.outbox(t))
}

// What dies again at once is not replayed for ever.
func TestReplayEnds(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insert(t, b.db, "orders", "a", ids("a", 10)...)
		b.bury(t, `seq <= 5`, false)
		b.bury(t, `seq > 5`, true)
		name := `"` + b.db.Schema.Schema + `".die`
		execute(t, b.db, `CREATE FUNCTION `+name+`() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO `+b.db.Schema.DeadLetters()+` (seq, id, destination, partition_key, payload, metadata, created_at, attempts, error, blocks)
				VALUES (NEW.seq, NEW.id, NEW.destination, NEW.partition_key, NEW.payload, NEW.metadata, NEW.created_at, 1, 'again', NEW.next_attempt_at IS NOT NULL);
			RETURN NULL; END $$`)
		execute(t, b.db, `CREATE TRIGGER die BEFORE INSERT ON `+b.db.Schema.Outbox()+` FOR EACH ROW EXECUTE FUNCTION `+name+`()`)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := b.admin.Replay(ctx, everything, forwarder.BulkOptions{})
		require.NoError(t, err)
		require.Equal(t, ids("a", 10), b.dead(t))
		require.EqualValues(t, 11, b.collect(t, everything)[0].ID)
	})
}

// Replayed while a forwarder runs: sent once each, units in order, nothing is left.
func TestReplayBesideAForwarder(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insertMany(t, b.db, 2000, 50)
		b.bury(t, `seq % 4 = 0`, false)
		var r recorder
		start(t, b.db, r.publisher(), fast(forwarder.Config{Workers: 3, BatchSize: 20}))
		require.EqualValues(t, 500, b.replay(t, everything))
		eventually(t, func() bool { return len(r.confirmed()) == 2000 })
		requireDrained(t, b.db)
		seen := map[string]bool{}
		for _, id := range r.confirmed() {
			require.False(t, seen[id], "%s was sent twice", id)
			seen[id] = true
		}
		require.Len(t, seen, 2000)
	})
}

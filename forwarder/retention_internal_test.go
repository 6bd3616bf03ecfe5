package forwarder

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

const day = 24 * time.Hour

func retentionAdmin(t *testing.T, driver string) (*Admin, *testdb.DB) {
	t.Helper()
	db := testdb.New(t)
	admin, err := NewAdmin(testdb.Open(t, driver, testdb.WithSetting(t, db.DSN, "default_transaction_isolation", "serializable")), db.Schema)
	require.NoError(t, err)
	return admin, db
}

func eachDriver(t *testing.T, test func(t *testing.T, a *Admin, db *testdb.DB)) {
	t.Helper()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			admin, db := retentionAdmin(t, driver)
			test(t, admin, db)
		})
	}
}

// write adds n rows that were written so long ago, and published if it says when.
func writeOld(t *testing.T, db *testdb.DB, n int, ago time.Duration, published string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload, created_at, published_at)
		SELECT 'id', 'orders', 'x', now() - $2::bigint * interval '1 microsecond', `+published+` FROM generate_series(1, $1::integer)`, n, ago.Microseconds())
	require.NoError(t, err)
}

func run(t *testing.T, db *testdb.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	require.NoError(t, err)
}

func countRows(t *testing.T, db *testdb.DB, from string) (count int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+from).Scan(&count))
	return count
}

func TestDeletePublished(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, a *Admin, db *testdb.DB) {
		for _, n := range []int{0, 1, 999, 1000, 1001, 2500} {
			writeOld(t, db, n, 9*day, `now() - interval '8 days'`)
			deleted, err := a.DeletePublished(t.Context(), 7*day)
			require.NoError(t, err)
			require.EqualValues(t, n, deleted)
		}
		outbox := db.Schema.Outbox()
		writeOld(t, db, 1500, 9*day, `NULL`) // waits since
		run(t, db, `UPDATE `+outbox+` SET next_attempt_at = 'infinity' WHERE seq % 3 = 0`)
		run(t, db, `UPDATE `+outbox+` SET next_attempt_at = now() - interval '8 days', attempts = 1 WHERE seq % 3 = 1`)
		writeOld(t, db, 1500, 9*day, `now() - interval '6 days'`)
		writeOld(t, db, 1500, 9*day, `now() - interval '8 days'`)
		writeOld(t, db, 5, 9*day, `'infinity'`)
		writeOld(t, db, 5, 9*day, `'-infinity'`)
		writeOld(t, db, 1500, time.Hour, `now()`)
		deleted, err := a.DeletePublished(t.Context(), 7*day)
		require.NoError(t, err)
		require.EqualValues(t, 1505, deleted)
		require.Equal(t, 1500, countRows(t, db, outbox+` WHERE published_at IS NULL`))
		require.Equal(t, 3005, countRows(t, db, outbox+` WHERE published_at IS NOT NULL`))

		for _, age := range []time.Duration{0, -1} {
			_, err = a.DeletePublished(t.Context(), age)
			require.ErrorIs(t, err, ErrInvalidAge)
			_, err = a.DeleteDeadLetters(t.Context(), age)
			require.ErrorIs(t, err, ErrInvalidAge)
		}
	})
}

func TestDeleteDeadLetters(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, a *Admin, db *testdb.DB) {
		table := db.Schema.DeadLetters()
		bury := func(n int, ago string, blocks bool) {
			_, err := db.ExecContext(t.Context(), `INSERT INTO `+table+` (seq, id, destination, payload, metadata, created_at, attempts, error, dead_at, blocks)
				SELECT n, 'id', 'orders', 'x', '{}', '2020-01-01', 1, 'e', now() - $2::text::interval, $3 FROM generate_series(1, $1::integer) AS n`, n, ago, blocks)
			require.NoError(t, err)
		}
		for _, n := range []int{0, 1, 999, 1000, 1001, 2500} { // of one moment
			bury(n, "8 days", false)
			deleted, err := a.DeleteDeadLetters(t.Context(), 7*day)
			require.NoError(t, err)
			require.EqualValues(t, n, deleted)
		}
		bury(2500, "9 days", true)
		bury(1500, "8 days", false)
		bury(10, "6 days", false)
		deleted, err := a.DeleteDeadLetters(t.Context(), 7*day)
		require.NoError(t, err)
		require.EqualValues(t, 1500, deleted)
		require.Equal(t, 2500, countRows(t, db, table+` WHERE blocks`))
		require.Equal(t, 2510, countRows(t, db, table))
	})
}

// What somebody has locked is left for the next time.
func TestRetentionPassesOverLocks(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, a *Admin, db *testdb.DB) {
		writeOld(t, db, 1500, 9*day, `now() - interval '8 days'`)
		run(t, db, `INSERT INTO `+db.Schema.DeadLetters()+` (seq, id, destination, payload, metadata, created_at, attempts, error, dead_at)
			SELECT n, 'id', 'orders', 'x', '{}', now(), 1, 'e', now() - interval '8 days' FROM generate_series(1, 10) AS n`)
		holder, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = holder.Rollback() }()
		_, err = holder.ExecContext(t.Context(), `UPDATE `+db.Schema.Outbox()+` SET published_at = NULL WHERE seq = 7`)
		require.NoError(t, err)
		_, err = holder.ExecContext(t.Context(), `SELECT FROM `+db.Schema.Outbox()+` WHERE seq = 8 FOR UPDATE`)
		require.NoError(t, err)
		_, err = holder.ExecContext(t.Context(), `SELECT FROM `+db.Schema.DeadLetters()+` WHERE seq = 3 FOR UPDATE`)
		require.NoError(t, err)

		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var seen spans
		deleted, err := a.deletePublished(ctx, 7*day, &seen, noPace)
		require.NoError(t, err)
		require.EqualValues(t, 1498, deleted)
		deleted, err = a.DeleteDeadLetters(ctx, 7*day)
		require.NoError(t, err)
		require.EqualValues(t, 9, deleted)

		require.NoError(t, holder.Commit())
		deleted, err = a.deletePublished(ctx, 7*day, &seen, noPace)
		require.NoError(t, err)
		require.EqualValues(t, 1, deleted, "row 7 is not published any more")
		require.Equal(t, 1, countRows(t, db, db.Schema.Outbox()+` WHERE seq = 7`))
	})
}

// A long backlog is read once, by its index, and not again while nothing in it can be old.
// What becomes old is deleted all the same.
func TestRetentionReadsABacklogOnce(t *testing.T) {
	t.Parallel()
	a, db := retentionAdmin(t, "postgres")
	run(t, db, `ALTER TABLE `+db.Schema.Outbox()+` SET (autovacuum_enabled = false)`)
	writeOld(t, db, 20_000, 9*day, `NULL`)
	writeOld(t, db, 500, 9*day, `now() - interval '8 days'`)
	writeOld(t, db, 20_000, time.Hour, `NULL`)
	var (
		seen    spans
		batches int
	)
	sweep := func(age time.Duration) int64 {
		batches = 0
		deleted, err := a.deletePublished(t.Context(), age, &seen, func(ctx context.Context, batch func(context.Context) error) error {
			batches++
			return batch(ctx)
		})
		require.NoError(t, err)
		return deleted
	}
	require.EqualValues(t, 500, sweep(7*day))
	require.Equal(t, 22, batches, "the rows that were written before, and one batch more")
	require.Len(t, seen, 1)
	for range 3 {
		require.Zero(t, sweep(7*day))
		require.Equal(t, 1, batches)
	}

	// Published meanwhile, and then the time has come.
	run(t, db, `UPDATE `+db.Schema.Outbox()+` SET published_at = now() - interval '8 days' WHERE seq % 10 = 0 AND seq <= 20000`)
	for i := range seen {
		seen[i].until = seen[i].until.Add(-7 * day)
	}
	require.EqualValues(t, 2000, sweep(7*day))
	require.Equal(t, 21, batches)

	// Young published rows come back earlier than those that are not published.
	run(t, db, `UPDATE `+db.Schema.Outbox()+` SET published_at = now() - interval '6 days' WHERE seq = 21`)
	seen = nil
	require.Zero(t, sweep(7*day))
	require.Len(t, seen, 2)
	require.InDelta(t, day, time.Until(seen[0].until), float64(time.Hour))
	require.InDelta(t, 7*day, time.Until(seen[1].until), float64(time.Hour))

	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), adminSettings+`; `+indexSettings)
	require.NoError(t, err)
	plan := explain(t, tx, publishedQuery(db.Schema.Outbox()), math.MinInt64, 0, 1000)
	require.NotContains(t, plan, "Seq Scan on outbox")
	plan = explain(t, tx, oldDeadLettersQuery(db.Schema.DeadLetters()), "-infinity", math.MinInt64, time.Now().UnixMicro(), 1000)
	require.NotContains(t, plan, "Seq Scan on outbox_dead_letters")
	require.Contains(t, plan, "outbox_dead_letters_dead_at_idx")
}

func TestSpans(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := func(hours int) time.Time { return now.Add(time.Duration(hours) * time.Hour) }
	s := spans{{from: 20, to: 30, until: at(10)}, {from: math.MinInt64, to: 10, until: at(10)}, {from: 10, to: 20, until: at(11)}, {from: 30, to: 40, until: at(20)}, {from: 50, to: 60, until: at(10)}}
	require.EqualValues(t, 40, s.skip(math.MinInt64))
	require.EqualValues(t, 45, s.skip(45))
	require.EqualValues(t, 60, s.skip(55))
	require.EqualValues(t, 60, s.skip(60))
	s.merge(time.Hour)
	require.Equal(t, spans{{from: math.MinInt64, to: 30, until: at(10)}, {from: 30, to: 40, until: at(20)}, {from: 50, to: 60, until: at(10)}}, s)
	s.forgetUntil(at(10))
	require.Equal(t, spans{{from: 30, to: 40, until: at(20)}}, s)
	s = nil
	for i := range int64(3 * maxSpans) {
		s.add(span{from: 2 * i, to: 2*i + 1, until: at(1)})
	}
	s.merge(time.Hour)
	require.Len(t, s, maxSpans)
}

func TestRetentionConfig(t *testing.T) {
	t.Parallel()
	for _, r := range []Retention{{Published: -1}, {DeadLetters: -1}} {
		require.ErrorIs(t, r.validate(), ErrInvalidConfig)
	}
	require.NoError(t, Retention{}.validate())
	for keep, want := range map[Retention]time.Duration{
		{}:                   0,
		{Published: 7 * day}: time.Hour,
		{DeadLetters: time.Minute, Published: day}: time.Minute,
		{DeadLetters: day, Published: time.Hour}:   6 * time.Minute,
	} {
		require.Equal(t, want, keep.interval(), "%+v", keep)
	}
	newRetention(nil, schema.Postgres{}, Retention{}, time.Second, watermill.NopLogger{}).run(t.Context()) // returns
}

// retentionLog keeps what is said.
type retentionLog struct {
	watermill.NopLogger

	mu    sync.Mutex
	lines []string
}

func (l *retentionLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *retentionLog) Error(msg string, err error, _ watermill.LogFields) {
	l.add(msg + ": " + err.Error())
}

func (l *retentionLog) Info(msg string, fields watermill.LogFields) {
	l.add(fmt.Sprint(msg, fields["count"]))
}

func (l *retentionLog) has(test func(line string) bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.lines, test)
}

// Several replicas delete again and again, survive a table that is away for a while, and end
// with their context.
func TestRetentionRuns(t *testing.T) {
	t.Parallel()
	_, db := retentionAdmin(t, "postgres")
	log := &retentionLog{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var replicas sync.WaitGroup
	for range 3 {
		r := newRetention(db.DB, db.Schema, Retention{Published: 7 * day, DeadLetters: 7 * day}, 10*time.Second, log)
		r.interval = 5 * time.Millisecond
		replicas.Go(func() { r.run(ctx) })
	}
	defer replicas.Wait()
	defer cancel()
	gone := func() {
		require.Eventually(t, func() bool {
			return countRows(t, db, db.Schema.Outbox()+` WHERE published_at IS NOT NULL`)+countRows(t, db, db.Schema.DeadLetters()) == 0
		}, 30*time.Second, 5*time.Millisecond)
	}
	bury := func() {
		run(t, db, `INSERT INTO `+db.Schema.DeadLetters()+` (seq, id, destination, payload, metadata, created_at, attempts, error, dead_at)
			SELECT n, 'id', 'orders', 'x', '{}', now(), 1, 'e', now() - interval '8 days' FROM generate_series(1, 10) AS n`)
	}
	writeOld(t, db, 100, 9*day, `NULL`)
	writeOld(t, db, 3000, 9*day, `now() - interval '8 days'`)
	bury()
	gone()

	hidden := db.Schema
	hidden.Name = "hidden"
	run(t, db, `ALTER TABLE `+db.Schema.Outbox()+` RENAME TO hidden`)
	require.Eventually(t, func() bool {
		return log.has(func(line string) bool {
			return strings.HasPrefix(line, "Old rows could not be deleted: forwarder: retention in ")
		})
	}, 30*time.Second, 5*time.Millisecond)
	run(t, db, `ALTER TABLE `+hidden.Outbox()+` RENAME TO outbox`)
	writeOld(t, db, 10, 9*day, `now() - interval '8 days'`)
	bury()
	gone()
	require.Equal(t, 100, countRows(t, db, db.Schema.Outbox()))
	cancel()
	replicas.Wait()
	require.True(t, log.has(func(line string) bool { return line == "Dead letters were deleted10" }))
}

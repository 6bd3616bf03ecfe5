package forwarder_test

import (
	"database/sql"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// adminBundle is an outbox and an Admin of it with the driver under test.
type adminBundle struct {
	db    *testdb.DB
	admin *forwarder.Admin
}

func setupAdmin(t *testing.T, driver string) *adminBundle {
	t.Helper()
	db := testdb.New(t)
	admin, err := forwarder.NewAdmin(hostilePool(t, db, driver), db.Schema)
	require.NoError(t, err)
	return &adminBundle{db: db, admin: admin}
}

// hostilePool is a pool whose sessions have defaults that are not what an Admin needs.
func hostilePool(t *testing.T, db *testdb.DB, driver string) *sql.DB {
	t.Helper()
	dsn := db.DSN
	for name, value := range map[string]string{
		"default_transaction_isolation": "serializable",
		"timezone":                      "Asia/Kathmandu",
		"bytea_output":                  "escape",
		"statement_timeout":             "1000",
	} {
		dsn = testdb.WithSetting(t, dsn, name, value)
	}
	if driver == "pgx" { // lib/pq asks for its own
		dsn = testdb.WithSetting(t, dsn, "datestyle", "SQL, DMY")
	}
	return testdb.Open(t, driver, dsn)
}

func forEachAdmin(t *testing.T, test func(t *testing.T, b *adminBundle)) {
	t.Helper()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			test(t, setupAdmin(t, driver))
		})
	}
}

// bury makes a dead letter of the row that where selects.
func (b *adminBundle) bury(t *testing.T, where string, blocks bool) {
	t.Helper()
	result, err := b.db.ExecContext(t.Context(), `WITH gone AS (DELETE FROM `+b.db.Schema.Outbox()+` WHERE `+where+` RETURNING *)
		INSERT INTO `+b.db.Schema.DeadLetters()+` (seq, id, destination, partition_key, payload, payload_bytes, metadata, created_at, attempts, error, error_group, blocks)
		SELECT seq, id, destination, partition_key, payload, payload_bytes, metadata, created_at, 10, 'too large: ' || seq, 'too large', $1 FROM gone ORDER BY seq`, blocks)
	require.NoError(t, err)
	rows, err := result.RowsAffected()
	require.NoError(t, err)
	require.Positive(t, rows, "%s selects nothing", where)
}

// outbox is what the table holds, each row as seq:id:state.
func (b *adminBundle) outbox(t *testing.T) []string {
	t.Helper()
	return b.lines(t, `SELECT seq || ':' || id || ':' || CASE
			WHEN published_at IS NOT NULL THEN 'published' WHEN next_attempt_at IS NULL THEN 'flows' WHEN next_attempt_at = 'infinity' THEN 'held'
			WHEN next_attempt_at <= clock_timestamp() THEN 'due' ELSE 'waits' END
		FROM `+b.db.Schema.Outbox()+` ORDER BY seq`)
}

func (b *adminBundle) dead(t *testing.T) []string {
	t.Helper()
	return b.lines(t, `SELECT id FROM `+b.db.Schema.DeadLetters()+` ORDER BY dead_letter_id`)
}

func (b *adminBundle) lines(t *testing.T, query string) []string {
	t.Helper()
	rows, err := b.db.QueryContext(t.Context(), query)
	require.NoError(t, err)
	defer rows.Close()
	lines := []string{}
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		lines = append(lines, line)
	}
	require.NoError(t, rows.Err())
	return lines
}

func (b *adminBundle) collect(t *testing.T, f forwarder.Filter) []forwarder.DeadLetter {
	t.Helper()
	var letters []forwarder.DeadLetter
	for letter, err := range b.admin.DeadLetters(t.Context(), f) {
		require.NoError(t, err)
		letters = append(letters, letter)
	}
	return letters
}

func eventIDs(letters []forwarder.DeadLetter) []string {
	list := []string{}
	for _, letter := range letters {
		list = append(list, letter.EventID)
	}
	return list
}

var everything = forwarder.Filter{All: true}

func TestNewAdminRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	_, err := forwarder.NewAdmin(nil, schema.Postgres{})
	require.ErrorIs(t, err, forwarder.ErrInvalidConfig)
	_, err = forwarder.NewAdmin(testdb.New(t).DB, schema.Postgres{Name: strings.Repeat("x", 64)})
	require.ErrorIs(t, err, schema.ErrInvalidName)
}

func TestBulkOperationsAskForAFilter(t *testing.T) {
	t.Parallel()
	b := setupAdmin(t, "postgres")
	insert(t, b.db, "orders", "a", "1")
	b.bury(t, `true`, false)
	day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		filter forwarder.Filter
		want   error
	}{
		{forwarder.Filter{}, forwarder.ErrEmptyFilter},
		{forwarder.Filter{OmitPayload: true}, forwarder.ErrEmptyFilter},
		{forwarder.Filter{All: true, Destination: "orders"}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{All: true, IDs: []int64{}}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{All: true, EventIDs: []string{"1"}}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{All: true, ErrorGroup: "x"}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{All: true, From: day}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{All: true, Until: day}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{From: day, Until: day}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{Until: time.Unix(math.MaxInt64/2, 0)}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{Destination: "a\x00"}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{ErrorGroup: "\xff"}, forwarder.ErrInvalidFilter},
		{forwarder.Filter{EventIDs: []string{"ok", "\xff"}}, forwarder.ErrInvalidFilter},
	} {
		for _, options := range []forwarder.BulkOptions{{}, {DryRun: true}} {
			n, err := b.admin.Replay(t.Context(), test.filter, options)
			require.ErrorIs(t, err, test.want, "%+v", test.filter)
			require.Zero(t, n)
			n, err = b.admin.Discard(t.Context(), test.filter, options)
			require.ErrorIs(t, err, test.want, "%+v", test.filter)
			require.Zero(t, n)
		}
	}
	require.Equal(t, []string{"1"}, b.dead(t))

	require.Equal(t, []string{"1"}, eventIDs(b.collect(t, forwarder.Filter{})), "reading is no bulk operation")
	for _, err := range b.admin.DeadLetters(t.Context(), forwarder.Filter{All: true, Destination: "x"}) {
		require.ErrorIs(t, err, forwarder.ErrInvalidFilter)
	}
	_, err := b.admin.DeadLetterGroups(t.Context(), forwarder.Filter{Destination: "\x00"})
	require.ErrorIs(t, err, forwarder.ErrInvalidFilter)
}

// Each condition, with texts that are SQL, patterns, escapes or array syntax elsewhere.
func TestFilter(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		odd := []string{`' OR true --`, `{a,b}`, `"`, `\`, `%`, `NULL`, `null`, `$1`, "line\nbreak\t", `Ünïcödé 🎉`, ` `, `(`, `a,b`, `{}`}
		for i, text := range odd {
			_, err := b.db.ExecContext(t.Context(), `INSERT INTO `+b.db.Schema.DeadLetters()+`
				(seq, id, destination, payload, metadata, created_at, attempts, error, error_group, dead_at)
				VALUES ($1::integer, $2, $2, 'x', '{}', now(), 1, $2, $2, timestamptz '2026-01-02 03:04:05.000000Z' + $1::integer * interval '1 microsecond')`, i, text)
			require.NoError(t, err)
		}
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for i, text := range odd {
			moment := start.Add(time.Duration(i) * time.Microsecond).In(time.FixedZone("elsewhere", 5*3600+1800))
			for name, filter := range map[string]forwarder.Filter{
				"Destination": {Destination: text},
				"ErrorGroup":  {ErrorGroup: text},
				"EventIDs":    {EventIDs: []string{text}},
				"time":        {From: moment, Until: moment.Add(time.Microsecond)},
				"fraction":    {From: moment.Add(-999), Until: moment.Add(1)},
				"together":    {Destination: text, EventIDs: odd, ErrorGroup: text, From: start, Until: moment.Add(time.Hour)},
			} {
				letters := b.collect(t, filter)
				require.Equal(t, []string{text}, eventIDs(letters), name)
				require.Equal(t, []string{text}, eventIDs(b.collect(t, forwarder.Filter{IDs: []int64{letters[0].ID}})))
				for _, run := range []func() (int64, error){
					func() (int64, error) {
						return b.admin.Replay(t.Context(), filter, forwarder.BulkOptions{DryRun: true})
					},
					func() (int64, error) {
						return b.admin.Discard(t.Context(), filter, forwarder.BulkOptions{DryRun: true})
					},
				} {
					n, err := run()
					require.NoError(t, err)
					require.EqualValues(t, 1, n)
				}
				groups, err := b.admin.DeadLetterGroups(t.Context(), filter)
				require.NoError(t, err)
				require.Len(t, groups, 1)
			}
		}
		require.Empty(t, b.collect(t, forwarder.Filter{IDs: []int64{}}))
		require.Empty(t, b.collect(t, forwarder.Filter{EventIDs: []string{}, Destination: odd[0]}))
		require.Empty(t, b.collect(t, forwarder.Filter{IDs: []int64{math.MaxInt64, math.MinInt64, 0, -1}}))
		n, err := b.admin.Discard(t.Context(), forwarder.Filter{IDs: []int64{}}, forwarder.BulkOptions{})
		require.NoError(t, err)
		require.Zero(t, n)
		require.Len(t, b.dead(t), len(odd))
		n, err = b.admin.Discard(t.Context(), forwarder.Filter{EventIDs: odd[:3]}, forwarder.BulkOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 3, n)
		require.Equal(t, odd[3:], b.dead(t))
	})
}

// Everything of a dead letter, in pages that are bounded by bytes too.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		_, err := b.db.ExecContext(t.Context(), `INSERT INTO `+b.db.Schema.Outbox()+` (id, payload, payload_bytes, destination, partition_key, metadata, created_at)
			VALUES ('text', 'päyload', NULL, 'orders', 'a', '{"k": "v", "n": 1}', '2026-01-02 03:04:05.678901Z'),
				('bytes', NULL, '\x00ff5c', 'orders', NULL, '{}', 'infinity')`)
		require.NoError(t, err)
		b.bury(t, `true`, true)
		letters := b.collect(t, forwarder.Filter{})
		require.Len(t, letters, 2)
		require.WithinDuration(t, time.Now(), letters[0].DeadAt, time.Hour)
		letters[0].DeadAt, letters[1].DeadAt = time.Time{}, time.Time{}
		require.Equal(t, forwarder.DeadLetter{
			ID: 1, EventID: "text", Destination: "orders", PartitionKey: "a", Payload: []byte("päyload"),
			Metadata: map[string]string{"k": "v", "n": "1"}, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC),
			Attempts: 10, Error: "too large: 1", ErrorGroup: "too large", Blocks: true,
		}, letters[0])
		require.Equal(t, forwarder.DeadLetter{
			ID: 2, EventID: "bytes", Destination: "orders", PartitionKey: "bytes", Payload: []byte{0, 255, '\\'},
			Metadata: map[string]string{}, Attempts: 10, Error: "too large: 2", ErrorGroup: "too large", Blocks: true,
		}, letters[1])

		insertMany(t, b.db, 450, 450)
		execute(t, b.db, `UPDATE `+b.db.Schema.Outbox()+` SET payload = repeat('x', 3 << 20) WHERE seq % 100 = 0`)
		execute(t, b.db, `UPDATE `+b.db.Schema.Outbox()+` SET payload = repeat('x', 9 << 20) WHERE seq % 100 = 1`)
		b.bury(t, `true`, false)
		letters = b.collect(t, forwarder.Filter{Destination: "orders"})
		require.Equal(t, b.dead(t), eventIDs(letters))
		large := 0
		for _, letter := range letters {
			if len(letter.Payload) > 1<<20 {
				large++
			}
		}
		require.Equal(t, 8, large)
		for _, letter := range b.collect(t, forwarder.Filter{OmitPayload: true}) {
			require.Nil(t, letter.Payload)
			require.NotEmpty(t, letter.EventID)
		}
	})
}

// The loop holds no connection, may change what it goes through, and ends although what it
// replays dies again.
func TestDeadLettersWhileTheyChange(t *testing.T) {
	t.Parallel()
	b := setupAdmin(t, "pgx")
	pool := testdb.Open(t, "pgx", b.db.DSN)
	pool.SetMaxOpenConns(1)
	admin, err := forwarder.NewAdmin(pool, b.db.Schema)
	require.NoError(t, err)
	insertMany(t, b.db, 300, 10)
	b.bury(t, `true`, false)
	seen := 0
	for letter, err := range admin.DeadLetters(t.Context(), forwarder.Filter{}) {
		require.NoError(t, err)
		seen++
		if seen%100 == 0 {
			n, err := admin.Replay(t.Context(), forwarder.Filter{IDs: []int64{letter.ID}}, forwarder.BulkOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			b.bury(t, `true`, false)
		}
	}
	require.Equal(t, 300, seen)
	require.Len(t, b.dead(t), 300)
	for _, err := range admin.DeadLetters(t.Context(), forwarder.Filter{}) {
		require.NoError(t, err)
		break
	}
}

func TestDeadLetterGroups(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		_, err := b.db.ExecContext(t.Context(), `INSERT INTO `+b.db.Schema.DeadLetters()+`
			(seq, id, destination, payload, metadata, created_at, attempts, error, error_group, dead_at, blocks)
			SELECT n, 'id-' || n, CASE WHEN n % 10 = 0 THEN 'payments' ELSE 'orders' END, 'x', '{}', now(), 1, 'cause ' || n % 3 || ' of ' || n, 'cause ' || n % 3,
				timestamptz '2026-01-02 00:00:00Z' + n * interval '1 minute', n % 5 = 0
			FROM generate_series(1, 10000) AS n ORDER BY n`)
		require.NoError(t, err)
		groups, err := b.admin.DeadLetterGroups(t.Context(), forwarder.Filter{Destination: "orders"})
		require.NoError(t, err)
		require.Len(t, groups, 3)
		minute := func(n int) time.Time {
			return time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC).Add(time.Duration(n) * time.Minute)
		}
		require.Equal(t, forwarder.DeadLetterGroup{
			Destination: "orders", ErrorGroup: "cause 0", Count: 3000, Blocking: 333, First: minute(3), Last: minute(9999),
			ExampleID: 9999, ExampleError: "cause 0 of 9999",
		}, groups[0])
		groups, err = b.admin.DeadLetterGroups(t.Context(), forwarder.Filter{})
		require.NoError(t, err)
		require.Len(t, groups, 6)
		var total int64
		for _, group := range groups {
			total += group.Count
			n, err := b.admin.Discard(t.Context(), forwarder.Filter{Destination: group.Destination, ErrorGroup: group.ErrorGroup}, forwarder.BulkOptions{DryRun: true})
			require.NoError(t, err)
			require.Equal(t, group.Count, n)
		}
		require.EqualValues(t, 10_000, total)
	})
}

// What a role lacks, and tables that are missing or old, are named.
func TestAdminSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			_, dsn := db.NewRole(t, `GRANT USAGE ON SCHEMA `+db.Schema.Schema+` TO {role}`)
			requireErrors(t, testdb.Open(t, driver, dsn), db.Schema, func(err error) {
				var state interface{ SQLState() string }
				require.ErrorAs(t, err, &state)
				require.Equal(t, "42501", state.SQLState())
				require.ErrorContains(t, err, "outbox")
			})

			for version := range 2 {
				empty := testdb.NewEmpty(t)
				if version == 1 {
					execute(t, empty, `CREATE TABLE `+empty.Schema.DeadLetters()+` (seq bigint)`)
					execute(t, empty, `CREATE TABLE `+empty.Schema.Settings()+` (lanes integer)`)
					execute(t, empty, `CREATE TABLE `+empty.Schema.Outbox()+` (seq bigint)`)
				}
				requireErrors(t, testdb.Open(t, driver, empty.DSN), empty.Schema, func(err error) { require.ErrorIs(t, err, schema.ErrNotMigrated) })
			}
		})
	}
}

func requireErrors(t *testing.T, pool *sql.DB, s schema.Postgres, check func(err error)) {
	t.Helper()
	admin, err := forwarder.NewAdmin(pool, s)
	require.NoError(t, err)
	for _, err := range admin.DeadLetters(t.Context(), forwarder.Filter{}) {
		check(err)
	}
	_, err = admin.DeadLetterGroups(t.Context(), forwarder.Filter{})
	check(err)
	_, err = admin.Stats(t.Context())
	check(err)
	_, err = admin.Replay(t.Context(), everything, forwarder.BulkOptions{})
	check(err)
	_, err = admin.Discard(t.Context(), everything, forwarder.BulkOptions{DryRun: true})
	check(err)
}

// Two at once never do the same one twice.
func TestManyAdminsAtOnce(t *testing.T) {
	t.Parallel()
	forEachAdmin(t, func(t *testing.T, b *adminBundle) {
		insertMany(t, b.db, 3000, 100)
		b.bury(t, `seq % 3 = 0`, true)
		b.bury(t, `seq % 3 = 1`, false)
		execute(t, b.db, `DELETE FROM `+b.db.Schema.Outbox())
		var (
			wait sync.WaitGroup
			done = make([]int64, 6)
			errs = make([]error, 6)
		)
		for i := range done {
			wait.Go(func() {
				if i%3 == 2 {
					done[i], errs[i] = b.admin.Discard(t.Context(), everything, forwarder.BulkOptions{})
				} else {
					done[i], errs[i] = b.admin.Replay(t.Context(), everything, forwarder.BulkOptions{})
				}
			})
		}
		wait.Wait()
		var replayed, discarded int64
		for i := range done {
			require.NoError(t, errs[i])
			if i%3 == 2 {
				discarded += done[i]
			} else {
				replayed += done[i]
			}
		}
		require.EqualValues(t, 2000, replayed+discarded)
		require.Empty(t, b.dead(t))
		require.Len(t, b.outbox(t), int(replayed))
		require.Equal(t, []string{fmt.Sprint(replayed)}, b.lines(t, `SELECT count(DISTINCT id)::text FROM `+b.db.Schema.Outbox()))
	})
}

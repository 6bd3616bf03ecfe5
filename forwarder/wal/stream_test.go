package wal_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/wal"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

func TestTransactionsComeInTheOrderOfTheirCommits(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	stream := open(t, newSource(t, db))
	first, second, never := begin(t, db), begin(t, db), begin(t, db)
	insert(t, db, first, "a1")
	insert(t, db, second, "b1", "b2")
	insert(t, db, never, "never")
	insert(t, db, first, "a2")
	exec(t, second, `SAVEPOINT s`)
	insert(t, db, second, "undone")
	exec(t, second, `ROLLBACK TO SAVEPOINT s`)
	insert(t, db, second, "b3")
	require.NoError(t, second.Commit())
	require.NoError(t, never.Rollback())
	insert(t, db, db, "c")
	require.NoError(t, first.Commit())

	changes := next(t, stream, 6)
	require.Equal(t, []string{"b1", "b2", "b3", "c", "a1", "a2"}, idsOf(changes))
	for i, c := range changes[1:] {
		require.True(t, changes[i].Position.Before(c.Position))
	}
}

func TestChangeIsTheRow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	stream := open(t, newSource(t, db))
	odd := `é✓𝄞 \ ' " ` + "\t\n"
	exec(t, db, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, partition_key, payload, metadata)
		VALUES ($1, $1, $1, $1, jsonb_build_object('k', $1::text))`, odd)
	exec(t, db, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload_bytes) VALUES ('binary', 'orders', '\x00ff5c')`)
	exec(t, db, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES ('empty', 'orders', '')`)
	exec(t, db, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES ('large', 'orders', repeat('0123456789', 1000000))`)

	changes := next(t, stream, 4)
	require.Equal(t, odd, changes[0].ID)
	require.Equal(t, odd, changes[0].Destination)
	require.Equal(t, odd, changes[0].PartitionKey)
	require.Equal(t, odd, string(changes[0].Payload))
	require.JSONEq(t, fmt.Sprintf(`{"k": %q}`, odd), string(changes[0].Metadata))
	require.Equal(t, []byte{0, 0xff, 0x5c}, changes[1].Payload)
	require.Empty(t, changes[1].PartitionKey)
	require.JSONEq(t, `{}`, string(changes[1].Metadata))
	require.Empty(t, changes[2].Payload)
	require.Equal(t, strings.Repeat("0123456789", 1_000_000), string(changes[3].Payload))
	for i, c := range changes {
		require.EqualValues(t, i+1, c.Seq)
	}
}

// A publication that somebody made may publish more than inserts.
func TestOnlyInsertsOfTheOutboxCount(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	other := `"` + db.Schema.Schema + `".other`
	exec(t, db, `CREATE TABLE `+other+` (id integer PRIMARY KEY)`)
	source := newSource(t, db)
	exec(t, db, `CREATE PUBLICATION `+db.Schema.Schema+` FOR TABLE `+db.Schema.Outbox()+`, `+other)
	stream := open(t, source)
	exec(t, db, `INSERT INTO `+other+` VALUES (1)`)
	insert(t, db, db, "1", "2", "3")
	exec(t, db, `UPDATE `+db.Schema.Outbox()+` SET payload = 'y'`)
	exec(t, db, `DELETE FROM `+db.Schema.Outbox())
	exec(t, db, `TRUNCATE `+db.Schema.Outbox())
	insert(t, db, db, "4")
	require.Equal(t, []string{"1", "2", "3", "4"}, idsOf(next(t, stream, 4)))
}

// What was settled does not come again; a transaction that was not settled to its end comes whole.
func TestStreamGoesOnWhereItWasSettled(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	source := newSource(t, db)
	stream := open(t, source)
	for _, transaction := range [][]string{{"a1", "a2"}, {"b1", "b2"}, {"c1"}} {
		tx := begin(t, db)
		insert(t, db, tx, transaction...)
		require.NoError(t, tx.Commit())
	}
	changes := next(t, stream, 5)
	settle := func(last forwarder.Change, isWhole bool) {
		stream.Settled(last.Position)
		if isWhole { // its end is read a moment later than its last row
			eventually(t, func() bool { return stream.Confirmed() > last.Position.Commit })
		}
	}
	for _, step := range []struct {
		settled int // how many of the changes
		again   []string
	}{
		{0, []string{"a1", "a2", "b1", "b2", "c1"}},
		{1, []string{"a1", "a2", "b1", "b2", "c1"}},
		{2, []string{"b1", "b2", "c1"}},
		{3, []string{"b1", "b2", "c1"}},
		{4, []string{"c1"}},
	} {
		if step.settled > 0 {
			settle(changes[step.settled-1], step.settled%2 == 0)
		}
		closeStream(t, stream)
		stream = open(t, source)
		require.Equal(t, step.again, idsOf(next(t, stream, len(step.again))), "after %d", step.settled)
	}
	settle(changes[4], true)
	closeStream(t, stream)
	stream = open(t, source)
	insert(t, db, db, "d")
	require.Equal(t, []string{"d"}, idsOf(next(t, stream, 1)))
}

// Writes elsewhere have the slot go on, as long as nothing is in flight.
func TestSlotOfAnIdleOutboxGoesOn(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	other := `"` + db.Schema.Schema + `".other`
	exec(t, db, `CREATE TABLE `+other+` (id integer)`)
	stream := open(t, newSource(t, db))
	slot := db.Schema.Schema
	write := func() string {
		exec(t, db, `INSERT INTO `+other+` SELECT generate_series(1, 1000)`)
		return position(t, db)
	}
	goesOn := func(position string) bool { return confirmedBehind(t, db, slot, position) }
	before := write()
	require.Eventually(t, func() bool { return goesOn(before) }, patience, 10*time.Millisecond)

	insert(t, db, db, "in flight")
	changes := next(t, stream, 1)
	after := write()
	insert(t, db, db, "behind it")
	behind := next(t, stream, 1)
	require.False(t, goesOn(after))
	stream.Settled(changes[0].Position)
	end := write()
	require.False(t, goesOn(end))
	stream.Settled(behind[0].Position)
	require.Eventually(t, func() bool { return goesOn(end) }, patience, 10*time.Millisecond)
}

// A large transaction is not held in memory, and a slow reader keeps the connection.
func TestSlowReaderOfALargeTransaction(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const rows, bytes = 100_000, 1 << 20
	stream := open(t, newSource(t, db, func(cfg *wal.Config) {
		cfg.QueueBytes = bytes
		cfg.ReplicationDSN = testdb.WithSetting(t, cfg.ReplicationDSN, "wal_sender_timeout", "500ms")
	}))
	exec(t, db, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload)
		SELECT g.n::text, 'orders', repeat('x', 256) FROM generate_series(1, $1::integer) AS g (n) ORDER BY g.n`, rows)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	seen := 0
	for slow := true; seen < rows; slow = false {
		if slow { // longer than the server waits for a report
			time.Sleep(5 * time.Second) //nolint:forbidigo // the time that is meant
		}
		changes, err := stream.Next(ctx)
		require.NoError(t, err)
		size := 0
		for _, c := range changes {
			seen++
			require.Equal(t, fmt.Sprint(seen), c.ID)
			size += len(c.Payload)
		}
		require.Less(t, size, bytes)
	}
}

func TestAnotherReaderStandsBy(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	source := newSource(t, db)
	stream := open(t, source)
	insert(t, db, db, "1")
	next(t, stream, 1)
	opened := make(chan forwarder.Stream, 1)
	failed := make(chan error, 1)
	go func() {
		second, err := source.Open(t.Context())
		failed <- err
		opened <- second
	}()
	require.Never(t, func() bool { return len(opened) > 0 }, 1500*time.Millisecond, 10*time.Millisecond)
	exec(t, db, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, db.Schema.Schema)
	_, err := stream.Next(t.Context())
	require.Error(t, err)
	require.NoError(t, <-failed)
	second := <-opened
	defer closeStream(t, second)
	require.Equal(t, []string{"1"}, idsOf(next(t, second, 1)))
}

func TestColumnsMayBeAddedButNotMissing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	stream := open(t, newSource(t, db))
	insert(t, db, db, "1")
	exec(t, db, `ALTER TABLE `+db.Schema.Outbox()+` ADD COLUMN theirs text DEFAULT 'x'`)
	insert(t, db, db, "2")
	require.Equal(t, []string{"1", "2"}, idsOf(next(t, stream, 2)))
	exec(t, db, `ALTER TABLE `+db.Schema.Outbox()+` RENAME COLUMN partition_key TO other`)
	exec(t, db, `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES ('3', 'orders', 'x')`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := stream.Next(ctx)
	require.ErrorIs(t, err, wal.ErrSchemaDrift)
	require.ErrorContains(t, err, "partition_key")
}

// What is inserted into a table that is called something else now is not to be passed by.
func TestRenamedTable(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	stream := open(t, newSource(t, db))
	insert(t, db, db, "1")
	next(t, stream, 1)
	exec(t, db, `ALTER TABLE `+db.Schema.Outbox()+` RENAME TO renamed`)
	exec(t, db, `INSERT INTO `+db.Schema.Schema+`.renamed (id, destination, payload) VALUES ('2', 'orders', 'x')`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := stream.Next(ctx)
	require.ErrorIs(t, err, wal.ErrSchemaDrift)
	require.ErrorContains(t, err, `"renamed"`)
}

// Postgres allows names of slots that are none of identifiers, and keywords.
func TestNamesOfSlots(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"1_", "select_"} {
		db := testdb.New(t)
		name := db.SlotNamed(t, prefix+db.Schema.Schema)
		stream := open(t, newSource(t, db, func(cfg *wal.Config) { cfg.Slot = name }))
		insert(t, db, db, "1")
		require.Equal(t, []string{"1"}, idsOf(next(t, stream, 1)))
	}
}

// A server has one slot of a name, whichever database it belongs to.
func TestDefaultSlotsOfTwoDatabases(t *testing.T) {
	t.Parallel()
	var names []string
	for range 2 {
		db := testdb.NewDatabase(t)
		require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
		source, err := wal.New(wal.Config{ReplicationDSN: db.DSN, AcceptUnboundedWAL: true}, nil)
		require.NoError(t, err)
		stream := open(t, source)
		var name string
		require.NoError(t, db.QueryRowContext(t.Context(),
			`SELECT slot_name FROM pg_replication_slots WHERE database = current_database()`).Scan(&name))
		names = append(names, db.SlotNamed(t, name))
		insert(t, db, db, "1")
		require.Equal(t, []string{"1"}, idsOf(next(t, stream, 1)))
	}
	require.NotEqual(t, names[0], names[1])
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	fails := func(t *testing.T, db *testdb.DB, want error, text string, options ...option) {
		t.Helper()
		err := newSource(t, db, options...).Prepare(t.Context())
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, text)
	}
	t.Run("a bound for the log", func(t *testing.T) {
		t.Parallel()
		fails(t, db, wal.ErrUnboundedWAL, "max_slot_wal_keep_size", func(cfg *wal.Config) { cfg.AcceptUnboundedWAL = false })
	})
	t.Run("the right to replicate", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		role, dsn := db.NewRole(t)
		fails(t, db, wal.ErrNoReplicationRight, `ALTER ROLE "`+role+`" REPLICATION`, func(cfg *wal.Config) { cfg.ReplicationDSN = dsn })
	})
	t.Run("the right to publish", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		role, dsn := db.NewRole(t)
		exec(t, db, `ALTER ROLE `+role+` REPLICATION`)
		exec(t, db, `GRANT USAGE ON SCHEMA "`+db.Schema.Schema+`" TO `+role)
		fails(t, db, wal.ErrNoPublication, `CREATE PUBLICATION`, func(cfg *wal.Config) { cfg.ReplicationDSN = dsn })
	})
	t.Run("the table", func(t *testing.T) {
		t.Parallel()
		fails(t, testdb.NewEmpty(t), schema.ErrNotMigrated, "")
	})
	t.Run("inserts of the publication", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		source := newSource(t, db)
		exec(t, db, `CREATE PUBLICATION `+db.Schema.Schema+` FOR TABLE `+db.Schema.Outbox()+` WITH (publish = 'update')`)
		err := source.Prepare(t.Context())
		require.ErrorIs(t, err, wal.ErrNoPublication)
		require.ErrorContains(t, err, `SET (publish = 'insert')`)
	})
	t.Run("the table in the publication", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		source := newSource(t, db)
		exec(t, db, `CREATE PUBLICATION `+db.Schema.Schema)
		err := source.Prepare(t.Context())
		require.ErrorIs(t, err, wal.ErrNoPublication)
		require.ErrorContains(t, err, `ADD TABLE `+db.Schema.Outbox())
	})
	t.Run("rows of the publication", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		var version int
		require.NoError(t, db.QueryRowContext(t.Context(), `SHOW server_version_num`).Scan(&version))
		if version < 150000 {
			return // it has no filters
		}
		source := newSource(t, db)
		exec(t, db, `CREATE PUBLICATION `+db.Schema.Schema+` FOR TABLE `+db.Schema.Outbox()+` WHERE (seq > 7)`)
		err := source.Prepare(t.Context())
		require.ErrorIs(t, err, wal.ErrNoPublication)
		require.ErrorContains(t, err, `seq > 7`)
	})
	t.Run("another's slot", func(t *testing.T) {
		t.Parallel()
		db := testdb.New(t)
		source := newSource(t, db)
		exec(t, db, `SELECT pg_create_physical_replication_slot($1)`, db.Schema.Schema)
		err := source.Prepare(t.Context())
		require.ErrorIs(t, err, wal.ErrForeignSlot)
	})
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	valid := wal.Config{ReplicationDSN: "postgres://somewhere/db"}
	require.NoError(t, valid.Validate())
	for field, change := range map[string]func(*wal.Config){
		"ReplicationDSN": func(c *wal.Config) { c.ReplicationDSN = "postgres://u:secret@%zz" },
		"Slot":           func(c *wal.Config) { c.Slot = "Upper-Case" },
		"Publication":    func(c *wal.Config) { c.Publication = strings.Repeat("p", 64) },
		"QueueBytes":     func(c *wal.Config) { c.QueueBytes = 1 },
	} {
		cfg := valid
		change(&cfg)
		err := cfg.Validate()
		require.ErrorIs(t, err, wal.ErrInvalidConfig)
		require.ErrorContains(t, err, field)
		require.NotContains(t, err.Error(), "secret")
	}
	require.ErrorIs(t, wal.Config{}.Validate(), wal.ErrInvalidConfig)
	_, err := wal.New(wal.Config{ReplicationDSN: valid.ReplicationDSN, Schema: schema.Postgres{Name: strings.Repeat("x", 64)}}, nil)
	require.ErrorIs(t, err, schema.ErrInvalidName)
}

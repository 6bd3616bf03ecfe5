package forwarder_test

import (
	"context"
	"database/sql"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
	"github.com/watermill-outbox/outbox/schema"
)

// sleepy looks by itself so seldom that only a writer who wakes it explains a quick answer.
func sleepy(db *testdb.DB) forwarder.Config {
	return forwarder.Config{PollInterval: time.Hour, ListenDSN: db.DSN, DatabaseTimeout: 5 * time.Second}
}

// holders are the sessions that hold the lock of those that sleep.
func holders(t *testing.T, db *testdb.DB) (pids []int) {
	t.Helper()
	all, outbox := db.Schema.WakeUpLock()
	rows, err := db.QueryContext(t.Context(), `SELECT l.pid FROM pg_catalog.pg_locks AS l
		WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = $1 AND l.objid = $2
			AND l.mode = 'ExclusiveLock' AND l.granted`, all, outbox)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var pid int
		require.NoError(t, rows.Scan(&pid))
		pids = append(pids, pid)
	}
	require.NoError(t, rows.Err())
	return pids
}

// awaitSleep waits until the forwarders sleep, and returns the session of the one on duty.
func awaitSleep(t *testing.T, db *testdb.DB) (pid int) {
	t.Helper()
	eventually(t, func() bool {
		pids := holders(t, db)
		if len(pids) == 1 {
			pid = pids[0]
		}
		return len(pids) == 1
	})
	return pid
}

func TestWriterWakesForwarderThatSleeps(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	r := &recorder{}
	start(t, db, r.publisher(), sleepy(db))
	for _, id := range []string{"first", "second", "third"} {
		awaitSleep(t, db)
		insert(t, db, "orders", "", id)
		requireDrained(t, db)
	}
	require.Equal(t, []string{"first", "second", "third"}, r.confirmed())
}

// A writer that was at work before the forwarder tried to sleep does not wake anybody: the
// forwarder must not sleep before it has ended.
func TestForwarderDoesNotFallAsleepWhileAWriterIsAtWork(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	r := &recorder{}
	start(t, db, r.publisher(), sleepy(db))
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES ('late', 'orders', 'x')`)
	require.NoError(t, err)
	// Longer than it takes to fall asleep. That it stays awake cannot be waited for.
	require.Never(t, func() bool { return len(holders(t, db)) > 0 }, 1500*time.Millisecond, 10*time.Millisecond)
	require.NoError(t, tx.Commit())
	requireDrained(t, db)
	awaitSleep(t, db)
}

// Each takes one row, and has it until all have one.
func TestAllReplicasAreWoken(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	const replicas = 3
	arrived, all := make(chan struct{}, replicas), make(chan struct{})
	for range replicas {
		cfg := sleepy(db)
		cfg.Workers, cfg.Ordering, cfg.BatchSize = 1, forwarder.None, 1
		start(t, db, publisherFunc(func(ctx context.Context, msgs []forwarder.Outgoing) []error {
			arrived <- struct{}{}
			select {
			case <-all:
			case <-ctx.Done():
			}
			return make([]error, len(msgs))
		}), cfg)
	}
	awaitSleep(t, db)
	_, err := db.ExecContext(t.Context(), `INSERT INTO `+db.Schema.Outbox()+` (id, destination, payload) VALUES
		('a', 'orders', 'x'), ('b', 'orders', 'x'), ('c', 'orders', 'x')`)
	require.NoError(t, err)
	for range replicas {
		select {
		case <-arrived:
		case <-time.After(patience):
			require.Fail(t, "a replica was not woken")
		}
	}
	close(all)
	requireDrained(t, db)
}

// The replica on duty dies, and nobody says so.
func TestReplicaOnDutyDies(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	r := &recorder{}
	for range 2 {
		start(t, db, r.publisher(), sleepy(db))
	}
	for n := range 3 {
		_, err := db.ExecContext(t.Context(), `SELECT pg_catalog.pg_terminate_backend($1)`, awaitSleep(t, db))
		require.NoError(t, err)
		insert(t, db, "orders", "", "id-"+strconv.Itoa(n))
		requireDrained(t, db)
	}
}

// Whoever only makes a forwarder leaves nothing behind; what it does is seen in TestMain.
func TestForwarderThatNeverRuns(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	_, err := forwarder.New(db.DB, (&recorder{}).publisher(), sleepy(db), nil)
	require.NoError(t, err)
}

func TestReplicaThatStopsHandsItsDutyOver(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
	r := &recorder{}
	_, stopFirst := start(t, db, r.publisher(), sleepy(db))
	awaitSleep(t, db)
	start(t, db, r.publisher(), sleepy(db))
	insert(t, db, "orders", "", "one")
	requireDrained(t, db)
	awaitSleep(t, db)
	require.NoError(t, stopFirst())
	awaitSleep(t, db)
	insert(t, db, "orders", "", "two")
	requireDrained(t, db)
}

// Where nobody would be woken, the forwarder looks by itself.
func TestForwarderLooksWhereWritersDoNotNotify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, db *testdb.DB)
		dsn     func(db *testdb.DB) string
		says    string
	}{
		{name: "trigger disabled", says: "missing or disabled", prepare: func(t *testing.T, db *testdb.DB) {
			t.Helper()
			_, err := db.ExecContext(t.Context(), `ALTER TABLE `+db.Schema.Outbox()+` DISABLE TRIGGER `+schema.WakeUpTrigger)
			require.NoError(t, err)
		}},
		{name: "no server there", says: "connect to ListenDSN", dsn: func(*testdb.DB) string { return "host=127.0.0.1 port=1 dbname=none sslmode=disable" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			require.NoError(t, db.Schema.Migrate(t.Context(), db.DB))
			cfg := sleepy(db)
			cfg.PollInterval = 0
			if c.prepare != nil {
				c.prepare(t, db)
			}
			if c.dsn != nil {
				cfg.ListenDSN = c.dsn(db)
			}
			cfg.Schema = db.Schema
			log := &errorLog{}
			r := &recorder{}
			f, err := forwarder.New(db.DB, r.publisher(), cfg, log)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			done := make(chan error, 1)
			go func() { done <- f.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				require.NoError(t, <-done)
			})
			eventually(t, func() bool { return len(log.errors()) > 0 })
			require.Contains(t, log.errors()[0], c.says)
			insert(t, db, "orders", "", "one")
			requireDrained(t, db)
		})
	}
}

func TestInvalidListenDSN(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("postgres", "")
	require.NoError(t, err)
	defer db.Close()
	_, err = forwarder.New(db, (&recorder{}).publisher(), forwarder.Config{ListenDSN: "port=many"}, nil)
	require.ErrorIs(t, err, forwarder.ErrInvalidConfig)
	require.ErrorContains(t, err, "ListenDSN")
}

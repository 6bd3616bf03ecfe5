package forwarder_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// documentedGrants are those of the README, each with what the log says without it.
var documentedGrants = []struct{ grant, complaint string }{
	{`USAGE ON SCHEMA {schema}`, `"{schema}"."outbox": pq: `},
	{`SELECT ON {schema}.outbox`, `lacks SELECT on "{schema}"."outbox"`},
	{`UPDATE ON {schema}.outbox`, `lacks UPDATE on "{schema}"."outbox"`},
	{`DELETE ON {schema}.outbox`, `lacks DELETE on "{schema}"."outbox"`},
	{`SELECT ON {schema}.outbox_settings`, `lacks SELECT on "{schema}"."outbox_settings"`},
	{`SELECT ON {schema}.outbox_dead_letters`, `lacks SELECT on "{schema}"."outbox_dead_letters"`},
	{`INSERT ON {schema}.outbox_dead_letters`, `lacks INSERT on "{schema}"."outbox_dead_letters"`},
	{`SELECT ON {schema}.outbox_absences`, `lacks SELECT on "{schema}"."outbox_absences"`},
	{`INSERT ON {schema}.outbox_absences`, `lacks INSERT on "{schema}"."outbox_absences"`},
	{`UPDATE ON {schema}.outbox_absences`, `lacks UPDATE on "{schema}"."outbox_absences"`},
	{`DELETE ON {schema}.outbox_absences`, `lacks DELETE on "{schema}"."outbox_absences"`},
	{`SELECT ON {schema}.watermill_outbox_migrations`, `watermill_outbox_migrations (42501)`},
}

func in(db *testdb.DB, text string) string {
	return strings.ReplaceAll(text, "{schema}", db.Schema.Schema)
}

// asRole is db for a role with the documented grants, but for one.
func asRole(t *testing.T, db *testdb.DB, driver, without string) (restricted *testdb.DB, role string) {
	t.Helper()
	var grants []string
	for _, documented := range documentedGrants {
		if documented.grant != without {
			grants = append(grants, `GRANT `+in(db, documented.grant)+` TO {role}`)
		}
	}
	role, dsn := db.NewRole(t, grants...)
	return &testdb.DB{DB: testdb.Open(t, driver, dsn), Schema: db.Schema, DSN: dsn}, role
}

func execute(t *testing.T, db *testdb.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	require.NoError(t, err)
}

// Both ways of ordering and of settling, and failed attempts too.
func TestDocumentedGrantsAreEnough(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		for _, cfg := range []forwarder.Config{
			{Ordering: forwarder.PerKey, Settlement: forwarder.Delete},
			{Ordering: forwarder.None, Settlement: forwarder.MarkPublished},
		} {
			t.Run(driver+" "+string(cfg.Ordering), func(t *testing.T) {
				t.Parallel()
				db := testdb.New(t)
				insert(t, db, "orders", "a", ids("a", 5)...)
				restricted, _ := asRole(t, db, driver, "")
				var refused atomic.Bool
				r := recorder{fail: func(forwarder.Outgoing) error {
					if refused.CompareAndSwap(false, true) {
						return forwarder.Refused(errTest)
					}
					return nil
				}}
				start(t, restricted, r.publisher(), fast(cfg))
				requireDrained(t, db)
				require.Len(t, r.unit("orders", "a"), 5)
			})
		}
	}
}

// Without one of them nothing is sent, and the log names what is missing. The forwarder
// waits, and begins once it is granted.
func TestEachDocumentedGrantIsNeeded(t *testing.T) {
	t.Parallel()
	for _, missing := range documentedGrants {
		t.Run(missing.grant, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			insert(t, db, "orders", "a", "a-1")
			restricted, role := asRole(t, db, "postgres", missing.grant)
			b := runWithLog(t, restricted, forwarder.Config{})
			eventually(t, func() bool { return len(b.log.errors()) > 2 })
			require.Empty(t, b.recorder.confirmed())
			require.Contains(t, b.log.errors()[0], "Database refuses the forwarder, messages stay in the outbox, the forwarder waits to start: ")
			require.Contains(t, b.log.errors()[0], in(db, missing.complaint))

			execute(t, db, `GRANT `+in(db, missing.grant)+` TO `+role)
			requireDrained(t, db)
			require.Equal(t, []string{"a-1"}, b.recorder.confirmed())
		})
	}
}

// A grant that is taken away later does not have the same messages sent for ever: each
// worker notices after one batch.
func TestRevokedGrantStopsPublishing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	restricted, role := asRole(t, db, "postgres", "")
	b := runWithLog(t, restricted, forwarder.Config{Workers: 2})
	<-b.forwarder.Running()
	execute(t, db, `REVOKE DELETE ON `+db.Schema.Outbox()+` FROM `+role)
	insert(t, db, "orders", "a", "a-1")
	eventually(t, func() bool { return b.log.repeated() > 10 })
	require.LessOrEqual(t, len(b.log.errors()), 2, "a claim that found nothing may have ended between")
	require.Contains(t, b.log.errors()[0], "Database refuses the forwarder, messages stay in the outbox: ")
	sent := len(b.recorder.confirmed())
	require.LessOrEqual(t, sent, 2)

	execute(t, db, `GRANT DELETE ON `+db.Schema.Outbox()+` TO `+role)
	requireDrained(t, db)
	require.Len(t, b.recorder.confirmed(), sent+1)
}

// Rows that a policy hides would wait without a word.
func TestHiddenRowsAreReported(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	execute(t, db, `ALTER TABLE `+db.Schema.Outbox()+` ENABLE ROW LEVEL SECURITY`)
	insert(t, db, "orders", "a", "a-1")
	restricted, role := asRole(t, db, "postgres", "")
	b := runWithLog(t, restricted, forwarder.Config{})
	eventually(t, func() bool { return len(b.log.errors()) == 1 })
	require.Contains(t, b.log.errors()[0], "(42501)")

	execute(t, db, `ALTER ROLE `+role+` BYPASSRLS`)
	requireDrained(t, db)
}

// A database may be made read-only for a while, when its disk is full say.
func TestReadOnlyDatabaseIsNamed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert(t, db, "orders", "a", "a-1")
	role, dsn := db.NewRole(t, `ALTER ROLE {role} SUPERUSER`, `ALTER ROLE {role} SET default_transaction_read_only = on`)
	readOnly := &testdb.DB{DB: testdb.Open(t, "pgx", dsn), Schema: db.Schema, DSN: dsn} // lib/pq says READ WRITE by itself
	readOnly.SetConnMaxLifetime(1)                                                      // each claim has a session with the role's defaults of the moment
	b := runWithLog(t, readOnly, forwarder.Config{})
	eventually(t, func() bool { return b.log.repeated() > 2 })
	require.Len(t, b.log.errors(), 1, "it is said once")
	require.Contains(t, b.log.errors()[0], "Database is read-only, messages stay in the outbox: ")
	require.Empty(t, b.recorder.confirmed())

	execute(t, db, `ALTER ROLE `+role+` RESET default_transaction_read_only`)
	requireDrained(t, db)
}

// watched is a forwarder whose log a test reads. It ends with the test.
type watched struct {
	forwarder *forwarder.Forwarder
	recorder  recorder
	log       errorLog
}

func runWithLog(t *testing.T, db *testdb.DB, cfg forwarder.Config) *watched {
	t.Helper()
	var b watched
	cfg.Schema = db.Schema
	var err error
	b.forwarder, err = forwarder.New(db.DB, b.recorder.publisher(), fast(cfg), &b.log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- b.forwarder.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &b
}

// errorLog keeps errors with their texts, and counts what is said again at a lower level.
type errorLog struct {
	watermill.NopLogger

	mu    sync.Mutex
	lines []string
	again int
}

func (l *errorLog) Error(msg string, err error, _ watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, msg+": "+err.Error())
}

func (l *errorLog) Debug(string, watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again++
}

func (l *errorLog) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (l *errorLog) errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

func (l *errorLog) repeated() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.again
}

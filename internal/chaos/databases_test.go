package chaos_test

import (
	"context"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/internal/embedded"
	"github.com/watermill-outbox/outbox/internal/ledger"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

func databaseFaults() []scenario {
	return []scenario{
		{name: "Postgres restarted, fast", short: true, alone: true, prepare: atLeisure, faults: restarted("postgres.sh")},
		{name: "Postgres restarted, immediate", alone: true, prepare: atLeisure, faults: func(ctx context.Context, w *world, c *ledger.Control) error {
			return w.bounce(ctx, c, "postgres.sh", func() error { return w.servers.signal(ctx, "postgres.sh", syscall.SIGQUIT) })
		}},
		{name: "all backends terminated", shortFromLog: true, faults: backendsTerminated},
		isolated("serializable"),
		isolated("repeatable read"),
		{name: "idle_in_transaction_session_timeout 1 s", settings: []string{"idle_in_transaction_session_timeout = '1s'"}, prepare: patientPublisher, faults: brokerTakesTwoSeconds},
		{name: "statement_timeout 1 s", settings: []string{"statement_timeout = '1s'"}, prepare: settlingCanBeSlow, faults: settlingIsSlow},
		{name: "errors in German", variants: []variant{{kafka, 4, false}}, prepare: germanServer, faults: backendsTerminated},
	}
}

// isolated is a database whose own isolation level the forwarders must not take: above READ
// COMMITTED claims and settlements that meet fail each other.
func isolated(level string) scenario {
	return scenario{
		name:     "default_transaction_isolation " + level,
		settings: []string{"default_transaction_isolation = '" + level + "'"},
		prepare:  patientPublisher,
		faults:   func(context.Context, *world, *ledger.Control) error { return nil },
		check: func(w *world, r ledger.Report) {
			noneDead(w, r)
			require.Empty(w.t, r.ForwarderErrors)
		},
	}
}

// backendsTerminated ends every session of the database but the ledger's question.
func backendsTerminated(ctx context.Context, w *world, c *ledger.Control) error {
	for _, share := range []float64{0.2, 0.4, 0.6, 0.8} {
		if err := c.Reach(ctx, share); err != nil {
			return err
		}
		c.HitAll()
		_, err := w.db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type IN ('client backend', 'walsender')`)
		if err != nil {
			return err
		}
	}
	return nil
}

// patientPublisher leaves a batch more time than what the database's settings allow.
func patientPublisher(w *world) { w.config.Forwarder.PublishTimeout = 20 * time.Second }

// brokerTakesTwoSeconds is longer than a second for the transaction of a batch, and no
// longer than PublishTimeout: nothing is sent twice for it.
func brokerTakesTwoSeconds(ctx context.Context, w *world, c *ledger.Control) error {
	if err := inFlow(ctx, c); err != nil {
		return err
	}
	mend, err := w.proxies.add(w.pair(forwarderKafka), toxic{"latency", down, map[string]any{"latency": 1500}})
	if err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	if err := mend(ctx); err != nil {
		return err
	}
	return c.AwaitForwarded(ctx)
}

// inFlow waits until batches come and go: a broker that has just started takes its time.
func inFlow(ctx context.Context, c *ledger.Control) error {
	if err := c.Reach(ctx, 0.3); err != nil {
		return err
	}
	return c.AwaitForwarded(ctx)
}

// settlingCanBeSlow has the statement that settles wait for so long as a table says.
func settlingCanBeSlow(w *world) {
	w.t.Helper()
	patientPublisher(w)
	w.config.Forwarder.DatabaseTimeout = 10 * time.Second
	for _, statement := range []string{
		`CREATE TABLE public.slowness AS SELECT 0::float8 AS seconds`,
		`CREATE FUNCTION public.be_slow() RETURNS trigger LANGUAGE plpgsql AS
			$$BEGIN PERFORM pg_catalog.pg_sleep(seconds) FROM public.slowness; RETURN NULL; END$$`,
		`CREATE TRIGGER be_slow AFTER DELETE ON ` + w.db.Schema.Outbox() + ` FOR EACH STATEMENT EXECUTE FUNCTION public.be_slow()`,
	} {
		_, err := w.db.ExecContext(w.t.Context(), statement)
		require.NoError(w.t, err)
	}
}

// settlingIsSlow: a second and a half, less than DatabaseTimeout, and more than what the
// database allows by itself. What is published by then may not be sent again for it.
func settlingIsSlow(ctx context.Context, w *world, c *ledger.Control) error {
	if err := inFlow(ctx, c); err != nil {
		return err
	}
	const query = `UPDATE public.slowness SET seconds = $1`
	if _, err := w.db.ExecContext(ctx, query, 1.5); err != nil {
		return err
	}
	if err := pause(ctx, 4*time.Second); err != nil {
		return err
	}
	if _, err := w.db.ExecContext(ctx, query, 0); err != nil {
		return err
	}
	return c.AwaitForwarded(ctx)
}

// germanServer: whoever goes by the text of an error does not understand it.
func germanServer(w *world) {
	w.t.Helper()
	const german = "de_DE.UTF-8"
	server, err := embedded.StartPostgres(w.t.Context(), embedded.PostgresConfig{Locale: german})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, server.Close()) })
	w.db = &testdb.DB{DB: testdb.Open(w.t, "postgres", server.DSN()), DSN: server.DSN()}
	_, err = w.db.ExecContext(w.t.Context(), `ALTER ROLE ALL SET lc_messages = '`+german+`'`)
	require.NoError(w.t, err)
	w.useDatabase(server.DSN())
	require.NoError(w.t, w.db.Schema.Migrate(w.t.Context(), w.db.DB))
}

package pgbouncertest_test

import (
	"fmt"
	"testing"

	"github.com/watermill-outbox/outbox/forwarder"
)

// mode is a driver and the setting that says how it sends a statement's parameters.
type mode struct {
	name           string
	driver         string
	setting, value string
}

// modes are those that work. Each has its own way from a Go value to a parameter.
var modes = []mode{
	{name: "pq", driver: "postgres"},
	{name: "pq binary_parameters", driver: "postgres", setting: "binary_parameters", value: "yes"},
	{name: "pgx cache_describe", driver: "pgx", setting: "default_query_exec_mode", value: "cache_describe"},
	{name: "pgx describe_exec", driver: "pgx", setting: "default_query_exec_mode", value: "describe_exec"},
	{name: "pgx exec", driver: "pgx", setting: "default_query_exec_mode", value: "exec"},
	{name: "pgx simple_protocol", driver: "pgx", setting: "default_query_exec_mode", value: "simple_protocol"},
}

// brokenMode is pgx's default, cache_statement: it keeps named statements on server
// connections that others use next.
var brokenMode = mode{name: "pgx", driver: "pgx"}

// Each mode does everything, in a database of its own, through the same few server
// connections as other clients.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			db := newHostile(t)
			db.startTraffic(t)
			t.Run("migrate", func(t *testing.T) { migrateAndCheck(t, db, m) })
			for _, cfg := range []forwarder.Config{
				{Ordering: forwarder.PerKey, Settlement: forwarder.Delete},
				{Ordering: forwarder.PerKey, Settlement: forwarder.MarkPublished},
				{Ordering: forwarder.None, Settlement: forwarder.Delete},
				{Ordering: forwarder.None, Settlement: forwarder.MarkPublished},
			} {
				name := fmt.Sprint(cfg.Ordering, "_", cfg.Settlement)
				t.Run(name, func(t *testing.T) { publishAndForward(t, db.withOutbox(t, name), m, cfg) })
			}
			t.Run("write-ahead log", func(t *testing.T) { forwardFromTheLog(t, db.withOutbox(t, "logged"), m) })
			t.Run("queue", func(t *testing.T) { sendAndReceive(t, db.withOutbox(t, "queue"), m) })
			t.Run("admin", func(t *testing.T) { administer(t, db.withOutbox(t, "administered"), m) })
			t.Run("middleware", func(t *testing.T) { handleAndForget(t, db, m) })
			t.Run("record", func(t *testing.T) { recordByMany(t, db, m) })
		})
	}
}

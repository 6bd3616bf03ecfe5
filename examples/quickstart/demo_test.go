package main

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var brokers = []string{"embedded", "kafka", "amqp"}

func TestDemo(t *testing.T) {
	t.Parallel()
	for _, broker := range brokers {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			const orders, kills, workers = 100, 2, 2
			demo := newProgram(t, "-broker="+broker, fmt.Sprint("-orders=", orders))
			require.Zero(t, demo.finish(t), "%s%s", &demo.stdout, &demo.stderr)
			require.Empty(t, demo.stderr.String())

			found := lastLine(t, demo.stdout.String())
			require.GreaterOrEqual(t, found.redelivered, kills)
			require.LessOrEqual(t, found.redelivered, kills*workers*batchSize)
			// A rebalance may deliver more than what the broker holds twice.
			require.GreaterOrEqual(t, found.duplicatesDropped, found.redelivered)
			require.Equal(t, figures{
				orders:            orders,
				rolledBack:        orders / rollbackEvery,
				forwarded:         2 * orders,
				redelivered:       found.redelivered,
				duplicatesDropped: found.duplicatesDropped,
				debits:            orders,
			}, found)
			demo.requireNothingLeft(t)
		})
	}
}

// What the environment says of a Postgres of the user's is not for the demo's own.
func TestDemoIgnoresTheUsersPostgres(t *testing.T) {
	t.Parallel()
	for name, variables := range map[string][]string{
		"embedded": {"POSTGRES_DSN=postgres://u@127.0.0.1:1/x", "KAFKA_BROKERS=127.0.0.1:1", "AMQP_URI=amqp://127.0.0.1:1/"},
		"kafka":    {"POSTGRES_DSN="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "kafka" && postgresDSN() != defaultPostgresDSN {
				t.Skip("the tests' Postgres is not at the default address")
			}
			demo := newProgram(t, "-broker="+name, "-orders=20")
			demo.Env = append(demo.Env, "PGHOSTADDR=127.0.0.2", "PGPORT=1", "PGTARGETSESSIONATTRS=standby",
				"PGOPTIONS=-c no_such_setting=1", "PGCLIENTENCODING=LATIN1", "PGSERVICE=none", "PGCHANNELBINDING=require")
			demo.Env = append(demo.Env, variables...)
			require.Zero(t, demo.finish(t), "%s%s", &demo.stdout, &demo.stderr)
			require.Empty(t, demo.stderr.String())
		})
	}
}

func lastLine(t *testing.T, stdout string) figures {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	last := lines[len(lines)-1]
	var f figures
	_, err := fmt.Sscanf(last, "orders=%d rolled_back=%d forwarded=%d redelivered=%d duplicates_dropped=%d debits=%d "+
		"lost=%d phantoms=%d double_debits=%d", &f.orders, &f.rolledBack, &f.forwarded, &f.redelivered, &f.duplicatesDropped,
		&f.debits, &f.lost, &f.phantoms, &f.doubleDebits)
	require.NoError(t, err, last)
	require.Equal(t, last, f.String())
	require.Equal(t, 1, strings.Count(stdout, "orders="))
	return f
}

// untilForwarding starts a demo of many orders and returns once its forwarder runs.
func untilForwarding(t *testing.T) *program {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("finds processes in /proc")
	}
	demo := newProgram(t, "-orders=1000")
	demo.start(t)
	demo.awaitLine(t, "killed hard")
	require.Eventually(t, func() bool {
		var forwarder, postgres bool
		for _, command := range demo.processes(t) {
			forwarder = forwarder || command == "forwarder"
			postgres = postgres || strings.Contains(command, "postgres")
		}
		return forwarder && postgres
	}, wait, tick)
	return demo
}

func TestNothingIsLeftAfterAHardKill(t *testing.T) {
	t.Parallel()
	demo := untilForwarding(t)
	require.NoError(t, demo.Process.Kill())
	require.Error(t, demo.Wait())
	demo.requireNothingLeft(t)
}

func TestServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ broker, variable string }{
		{"kafka", "POSTGRES_DSN=postgres://u:secret@127.0.0.1:1/x"},
		{"kafka", "KAFKA_BROKERS=127.0.0.1:1"},
		{"amqp", "AMQP_URI=amqp://u:secret@127.0.0.1:1/"},
	} {
		name, _, _ := strings.Cut(test.variable, "=")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			demo := newProgram(t, "-broker="+test.broker)
			demo.Env = append(demo.Env, test.variable)
			require.Equal(t, exitFailed, demo.finish(t))
			require.Contains(t, demo.stderr.String(), `at 127.0.0.1:1: run "make services", or set `+name)
			require.NotContains(t, demo.stderr.String(), "secret")
		})
	}
}

func TestBrokerAddressThatIsNone(t *testing.T) {
	t.Parallel()
	demo := newProgram(t, "-broker=amqp")
	demo.Env = append(demo.Env, "AMQP_URI=http://u:secret@127.0.0.1/")
	require.Equal(t, exitFailed, demo.finish(t))
	require.Contains(t, demo.stderr.String(), "AMQP_URI: ")
	require.NotContains(t, demo.stderr.String(), "secret")
}

func TestOptions(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		exit int
		text string
	}{
		"help":           {[]string{"-h"}, 0, "which servers to run on"},
		"help on amqp":   {[]string{"-h"}, 0, "amqp:     a real Postgres and RabbitMQ, at the addresses in POSTGRES_DSN and"},
		"unknown broker": {[]string{"-broker=rabbit"}, exitUsage, `unknown broker "rabbit": allowed are "embedded", "kafka" and "amqp"`},
		"no orders":      {[]string{"-orders=0"}, exitUsage, "-orders is 0, allowed is 1 to 5000"},
		"too many":       {[]string{"-orders=5001"}, exitUsage, "-orders is 5001, allowed is 1 to 5000"},
		"an argument":    {[]string{"kafka"}, exitUsage, `unexpected argument "kafka"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			demo := newProgram(t, test.args...)
			require.Equal(t, test.exit, demo.finish(t))
			require.Contains(t, demo.stderr.String(), test.text)
			require.Empty(t, demo.stdout.String())
		})
	}
}

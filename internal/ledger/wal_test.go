package ledger_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/internal/ledger"
	"github.com/watermill-outbox/outbox/internal/testdb"
)

// fromWAL asks for a slot.
const fromWAL = "any"

// One replica reads the log, the others stand by; whoever is killed, another goes on.
func TestFromTheWAL(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		run(t, b, ledger.Config{Replicas: 1, Kills: 4, SelfKills: 1, Forwarder: ledger.ForwarderConfig{Slot: fromWAL}})
		report := run(t, b, ledger.Config{
			Replicas: 3, Kills: 8, InsertDelay: 20 * time.Millisecond, Forwarder: ledger.ForwarderConfig{Slot: fromWAL},
		})
		require.Positive(t, report.Crossings)
	})
}

func TestMarkPublishedFromTheWAL(t *testing.T) {
	t.Parallel()
	b := ledger.NewKafka(t)
	run(t, b, ledger.Config{
		Replicas: 2, Kills: 6, InsertDelay: 20 * time.Millisecond,
		Forwarder: ledger.ForwarderConfig{Slot: fromWAL, Settlement: forwarder.MarkPublished},
	})
}

func TestWithoutOrderFromTheWAL(t *testing.T) {
	t.Parallel()
	run(t, ledger.NewKafka(t), ledger.Config{
		Replicas: 2, Kills: 4, Forwarder: ledger.ForwarderConfig{Slot: fromWAL, Ordering: forwarder.None},
	})
}

// No kill explains a single duplicate here.
func TestNothingTwiceFromTheWALUnlessKilled(t *testing.T) {
	t.Parallel()
	b := ledger.NewAMQP(t)
	run(t, b, ledger.Config{Replicas: 3, InsertDelay: 20 * time.Millisecond, Forwarder: ledger.ForwarderConfig{Slot: fromWAL}})
}

// A service in another language, and messages that no broker takes.
func TestOutsideAndPoisonFromTheWAL(t *testing.T) {
	t.Parallel()
	b := ledger.NewKafka(t)
	report := run(t, b, ledger.Config{
		Replicas: 2, Faults: poison,
		Forwarder: ledger.ForwarderConfig{Slot: fromWAL, MaxAttempts: 3, RetryMax: time.Second},
	})
	require.Equal(t, 2, report.DeadLetters)
}

// Behind a dead letter its unit waits, also that of a replica that is killed, until somebody lets it
// go on.
func TestBlockFromTheWAL(t *testing.T) {
	t.Parallel()
	b := ledger.NewAMQP(t)
	report := run(t, b, ledger.Config{
		Replicas:  2,
		Forwarder: ledger.ForwarderConfig{Slot: fromWAL, OnDeadLetter: forwarder.Block, MaxAttempts: 3, RetryMax: time.Second},
		Faults: func(ctx context.Context, c *ledger.Control) error {
			if err := poison(ctx, c); err != nil {
				return err
			}
			if err := c.WriteMore(ctx, 200); err != nil {
				return err
			}
			waited, err := c.Unblock(ctx)
			if err == nil {
				require.Positive(t, waited)
			}
			return err
		},
	})
	require.Equal(t, 2, report.DeadLetters)
}

// poison writes two messages that cannot be sent, each among others of its key, and kills replicas
// meanwhile.
func poison(ctx context.Context, c *ledger.Control) error {
	culprit := ledger.Extra{Metadata: map[string]string{"_watermill_message_uuid": "another"}}
	for aggregate, share := range []float64{0.2, 0.5} {
		if err := c.Reach(ctx, share); err != nil {
			return err
		}
		if err := c.WriteOutside(ctx, aggregate, 20); err != nil {
			return err
		}
		if err := c.Write(ctx, aggregate, ledger.Extra{}, culprit, ledger.Extra{}); err != nil {
			return err
		}
		if err := c.WriteOutside(ctx, aggregate, 20); err != nil {
			return err
		}
		if err := c.Kill(ctx); err != nil {
			return err
		}
	}
	return c.AwaitDeadLetters(ctx, 2)
}

// Some replicas read the table, while another reads the log, and all may be killed.
func TestTableAndWALSideBySide(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		run(t, b, sideBySide(t, b, ledger.Config{Replicas: 4, Kills: 8, InsertDelay: 20 * time.Millisecond}))
	})
}

func TestTableAndWALSideBySideSendNothingTwiceUnlessKilled(t *testing.T) {
	t.Parallel()
	b := ledger.NewKafka(t)
	run(t, b, sideBySide(t, b, ledger.Config{Replicas: 4}))
}

// sideBySide has every other replica read the log.
func sideBySide(t *testing.T, b broker, cfg ledger.Config) ledger.Config {
	t.Helper()
	cfg.Forwarder.Slot = fromWAL
	cfg = config(t, b, cfg)
	slot := cfg.Forwarder.Slot
	cfg.SlotOf = func(replica int) string {
		if replica%2 == 0 {
			return slot
		}
		return ""
	}
	return cfg
}

// From the table to the log and back, one replica after the other, while everybody writes. In between
// there are both kinds. Those that are replaced die hard.
func TestSwapToTheWALAndBack(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		swapToTheWALAndBack(t, b, (*ledger.Control).KillOldest)
	})
}

// Where those that are replaced end in an orderly way, nothing is sent twice.
func TestSwapToTheWALAndBackInARollingRestart(t *testing.T) {
	t.Parallel()
	onEachBroker(t, func(t *testing.T, b broker) {
		t.Helper()
		swapToTheWALAndBack(t, b, (*ledger.Control).RestartOldest)
	})
}

func swapToTheWALAndBack(t *testing.T, b broker, replace func(c *ledger.Control, ctx context.Context) error) {
	t.Helper()
	const replicas = 2
	cfg := config(t, b, ledger.Config{
		Replicas: replicas, Pace: 15 * time.Millisecond, InsertDelay: 20 * time.Millisecond,
		Forwarder: ledger.ForwarderConfig{Slot: fromWAL},
	})
	slot := cfg.Forwarder.Slot
	cfg.SlotOf = func(replica int) string {
		if replica/replicas == 1 {
			return slot
		}
		return ""
	}
	db := testdb.Open(t, "postgres", cfg.DSN)
	cfg.Faults = func(ctx context.Context, c *ledger.Control) error {
		for i, share := range []float64{0.1, 0.25, 0.6, 0.75} {
			if err := c.Reach(ctx, share); err != nil {
				return err
			}
			if i == replicas { // all read the log
				if err := awaitConfirmed(ctx, db, slot); err != nil {
					return err
				}
			}
			if err := replace(c, ctx); err != nil {
				return err
			}
		}
		return nil
	}
	run(t, b, cfg)
}

// awaitConfirmed returns when a slot has confirmed what is written by now: then rows come from it.
func awaitConfirmed(ctx context.Context, db *sql.DB, slot string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var end string
	if err := db.QueryRowContext(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
		return err
	}
	for confirmed := false; !confirmed; {
		err := db.QueryRowContext(ctx, `SELECT coalesce((SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots
			WHERE slot_name = $1 AND active), false)`, slot, end).Scan(&confirmed)
		if err != nil {
			return err
		}
	}
	return nil
}

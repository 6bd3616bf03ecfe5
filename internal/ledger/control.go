package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Control is what Config.Faults has in hand. It is for one goroutine.
type Control struct {
	run     *run
	writers *writers
	extra   *writer
	outside *writer
}

// Reach waits until so much of Config.Transactions is written: 0.5 is half of it.
func (c *Control) Reach(ctx context.Context, share float64) error {
	return c.writers.reach(ctx, int(share*float64(c.run.config.Transactions)))
}

// Written is how many transactions were made so far.
func (c *Control) Written() int { return int(c.writers.count.Load()) }

// WriteMore waits until so many transactions more were made.
func (c *Control) WriteMore(ctx context.Context, transactions int) error {
	return c.writers.reach(ctx, c.Written()+transactions)
}

// awaitWorking is awaitVictim among those that have rows in hand.
func (c *Control) awaitWorking(ctx context.Context) (*replica, error) {
	slot := c.run.config.Forwarder.Slot
	if slot == "" {
		return c.run.replicas.awaitVictim(ctx)
	}
	return c.run.replicas.awaitOne(ctx, func(running []*replica) *replica {
		var reader string
		err := c.run.db.QueryRowContext(ctx, `SELECT application_name FROM pg_catalog.pg_stat_replication AS r
			JOIN pg_catalog.pg_replication_slots AS s ON s.active_pid = r.pid WHERE s.slot_name = $1`, slot).Scan(&reader)
		if err != nil { // nobody reads it at this moment
			return nil
		}
		for _, r := range running {
			if readerName(r.number) == reader {
				return r
			}
		}
		return nil
	})
}

// Hit says that a fault has hit so many forwarder processes, each of which may have
// published what it could not settle. Kills are counted without it.
func (c *Control) Hit(processes int) { c.run.hit += processes }

// HitAll is Hit of all replicas.
func (c *Control) HitAll() { c.Hit(c.run.config.Replicas) }

// Kill kills a replica at a random moment of its life. Another takes its place.
func (c *Control) Kill(ctx context.Context) error { return c.run.replicas.kill(ctx) }

// KillOldest kills the replica that was started first.
func (c *Control) KillOldest(ctx context.Context) error {
	victim, err := c.run.replicas.awaitOldest(ctx)
	if err != nil {
		return err
	}
	return c.run.replicas.killNow(victim)
}

// RestartOldest has the replica that was started first end in an orderly way. Another
// takes its place.
func (c *Control) RestartOldest(ctx context.Context) error {
	r, err := c.run.replicas.awaitOldest(ctx)
	if err != nil {
		return err
	}
	return c.run.replicas.retire(r)
}

// KillAt kills a replica when it comes to that point, and returns when it is dead.
// Where they read the log, it is the one that does, since no other comes there.
func (c *Control) KillAt(ctx context.Context, at Point) error {
	victim, err := c.awaitWorking(ctx)
	if err != nil {
		return err
	}
	return c.run.replicas.killAt(ctx, victim, at)
}

// FreezeAt stops a replica, all of its process, when it comes to that point: it keeps
// its connections, says nothing any more, and answers nothing. It counts as hit. It is
// chosen as by KillAt.
func (c *Control) FreezeAt(ctx context.Context, at Point) (*Frozen, error) {
	r, err := c.awaitWorking(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.run.replicas.freezeAt(ctx, r, at); err != nil {
		return nil, err
	}
	c.Hit(1)
	return &Frozen{replicas: c.run.replicas, replica: r}, nil
}

// AwaitForwarded waits until everything that waits in the outbox now has left it. What
// is written meanwhile does not count.
func (c *Control) AwaitForwarded(ctx context.Context) error {
	var last int64
	query := `SELECT coalesce(max(seq), 0) FROM ` + c.run.tables.outbox
	if err := c.run.db.QueryRowContext(ctx, query).Scan(&last); err != nil {
		return fmt.Errorf("ledger: %s: %w", query, err)
	}
	left := 0
	err := await(ctx, c.run.config.Patience, func() (bool, error) {
		query := `SELECT count(*) FROM ` + c.run.tables.outbox + ` WHERE seq <= $1 AND published_at IS NULL`
		err := c.run.db.QueryRowContext(ctx, query, last).Scan(&left)
		return err == nil && left == 0, err
	})
	if err != nil {
		return fmt.Errorf("ledger: %d rows are not forwarded: %w%s", left, err, c.run.replicas.logs())
	}
	return nil
}

// AwaitDeadLetters waits until there are so many.
func (c *Control) AwaitDeadLetters(ctx context.Context, n int) error {
	err := await(ctx, c.run.config.Patience, func() (bool, error) {
		dead, err := texts(ctx, c.run.db, `SELECT id FROM `+c.run.tables.deadLetters)
		return len(dead) >= n, err
	})
	if err != nil {
		return fmt.Errorf("ledger: there are no %d dead letters: %w%s", n, err, c.run.replicas.logs())
	}
	return nil
}

// Unblock lets units go on that wait behind dead letters, and says how many rows have waited.
func (c *Control) Unblock(ctx context.Context) (waited int, err error) {
	held, err := texts(ctx, c.run.db, `SELECT id FROM `+c.run.tables.outbox+` WHERE next_attempt_at = 'infinity'`)
	if err != nil {
		return 0, err
	}
	if _, err := c.run.db.ExecContext(ctx, `UPDATE `+c.run.tables.deadLetters+` SET blocks = false`); err != nil {
		return 0, fmt.Errorf("ledger: unblock: %w", err)
	}
	return len(held), nil
}

// Frozen is a replica that neither works nor ends. One of Thaw and Kill must be called.
type Frozen struct {
	replicas *replicas
	replica  *replica
}

// PID is the process's.
func (f *Frozen) PID() int { return f.replica.cmd.Process.Pid }

// Thaw lets the replica go on as if no time had passed.
func (f *Frozen) Thaw() error {
	f.replicas.mu.Lock()
	delete(f.replicas.frozen, f.replica)
	f.replicas.mu.Unlock()
	if err := thaw(f.replica.cmd.Process); err != nil {
		return fmt.Errorf("ledger: thaw replica %d: %w", f.replica.number, err)
	}
	return f.replica.tell(goOnCommand)
}

// Kill ends the replica. Another takes its place.
func (f *Frozen) Kill() error { return f.replicas.killNow(f.replica) }

func (r *replica) tell(command string) error {
	if _, err := io.WriteString(r.stdin, command+"\n"); err != nil {
		return fmt.Errorf("ledger: tell replica %d: %w", r.number, err)
	}
	return nil
}

func (rs *replicas) retire(r *replica) error {
	rs.mu.Lock()
	rs.retired[r] = true
	err := r.stdin.Close()
	rs.mu.Unlock()
	if err != nil {
		return fmt.Errorf("ledger: stop replica %d: %w", r.number, err)
	}
	<-r.done
	return nil
}

// killAt: the replica may be killed by others meanwhile, and is dead all the same.
func (rs *replicas) killAt(ctx context.Context, victim *replica, at Point) error {
	rs.mu.Lock()
	rs.killed[victim] = true
	rs.mu.Unlock()
	if err := victim.tell(killCommand + string(at)); err != nil {
		return err
	}
	return rs.awaitPoint(ctx, victim, at, victim.done)
}

func (rs *replicas) freezeAt(ctx context.Context, r *replica, at Point) error {
	if err := r.tell(haltCommand + string(at)); err != nil {
		return err
	}
	if err := rs.awaitPoint(ctx, r, at, r.halted); err != nil {
		return err
	}
	if err := freeze(r.cmd.Process); err != nil {
		return fmt.Errorf("ledger: freeze replica %d: %w", r.number, err)
	}
	rs.mu.Lock()
	rs.frozen[r] = true
	rs.mu.Unlock()
	return nil
}

func (rs *replicas) awaitPoint(ctx context.Context, r *replica, at Point, reached <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, rs.config.Patience, errors.New("it has not come there"))
	defer cancel()
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ledger: replica %d, %s: %w; its log:\n%s", r.number, at, context.Cause(ctx), r.log.tail())
	}
}

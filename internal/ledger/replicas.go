package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// replicas keeps Config.Replicas forwarders alive, and has some of them killed.
type replicas struct {
	config Config
	child  childConfig
	fail   func(error)
	rand   *rand.Rand

	supervisors sync.WaitGroup
	// mortals are those that will kill themselves.
	mortals sync.WaitGroup

	mu       sync.Mutex
	all      []*replica
	mortal   map[*replica]bool
	killed   map[*replica]bool
	frozen   map[*replica]bool
	retired  map[*replica]bool
	stopping bool
	died     int
}

const longestLife = 300 * time.Millisecond

func newReplicas(cfg Config, fail func(error)) *replicas {
	return &replicas{
		config: cfg,
		child: childConfig{
			Schema:    cfg.Schema,
			Forwarder: cfg.Forwarder,
		},
		fail:   fail,
		rand:   cfg.random(partReplicas),
		mortal: map[*replica]bool{},
		killed: map[*replica]bool{},
		frozen: map[*replica]bool{},

		retired: map[*replica]bool{},
	}
}

func (rs *replicas) start(ctx context.Context) error {
	for i := range rs.config.Replicas {
		if err := rs.startOne(ctx, i < rs.config.SelfKills); err != nil {
			return err
		}
	}
	return nil
}

func (rs *replicas) startOne(ctx context.Context, mortal bool) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.stopping {
		return nil // nobody would stop it
	}
	child := rs.child
	child.Number = len(rs.all)
	child.DSN = rs.config.ForwarderDSN(len(rs.all))
	child.Forwarder.Slot = rs.config.SlotOf(len(rs.all))
	child.Broker = rs.config.Broker.Address() // it may be another one by now
	if mortal {
		child.DieAfterBatches = 1 + rs.rand.Int64N(5)
	}
	r, err := startReplica(ctx, len(rs.all), child)
	if err != nil {
		return err
	}
	rs.all = append(rs.all, r)
	if mortal {
		rs.mortal[r] = true
		rs.mortals.Add(1)
	}
	rs.supervisors.Go(func() {
		<-r.done
		if err := rs.ended(ctx, r); err != nil {
			rs.fail(err)
		}
	})
	return nil
}

// ended judges the end of a replica, and replaces one that died as it was meant to.
func (rs *replicas) ended(ctx context.Context, r *replica) error {
	rs.mu.Lock()
	mortal, killed, retired, stopping := rs.mortal[r], rs.killed[r], rs.retired[r], rs.stopping
	asMeant := (mortal || killed) && r.diedBySignal()
	if asMeant {
		rs.died++
	}
	rs.mu.Unlock()
	if mortal {
		defer rs.mortals.Done()
	}
	switch {
	case asMeant, retired && r.err == nil:
		return rs.startOne(ctx, false)
	case stopping && r.err == nil:
		return nil
	default:
		return fmt.Errorf("ledger: replica %d ended by itself: %w; its log:\n%s", r.number, errOr(r.err, "no error"), r.log.tail())
	}
}

// kill kills one replica at a random moment of its life.
func (rs *replicas) kill(ctx context.Context) error {
	victim, err := rs.awaitVictim(ctx)
	if err != nil {
		return err
	}
	if !pause(ctx, time.Duration(rs.rand.Int64N(int64(longestLife)))) {
		return context.Cause(ctx)
	}
	return rs.killNow(victim)
}

func (rs *replicas) killNow(victim *replica) error {
	rs.mu.Lock()
	rs.killed[victim] = true
	err := victim.cmd.Process.Kill()
	rs.mu.Unlock()
	if err != nil {
		return fmt.Errorf("ledger: kill replica %d: %w", victim.number, err)
	}
	<-victim.done
	return nil
}

// awaitVictim chooses among those that run; one that will kill itself is left to it.
func (rs *replicas) awaitVictim(ctx context.Context) (*replica, error) {
	return rs.awaitOne(ctx, func(running []*replica) *replica { return running[rs.rand.IntN(len(running))] })
}

// awaitOldest is awaitVictim of the one that was started first.
func (rs *replicas) awaitOldest(ctx context.Context) (*replica, error) {
	return rs.awaitOne(ctx, func(running []*replica) *replica { return running[0] })
}

// awaitOne asks until one is chosen.
func (rs *replicas) awaitOne(ctx context.Context, choose func(running []*replica) *replica) (*replica, error) {
	var victim *replica
	err := await(ctx, rs.config.Patience, func() (bool, error) {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		var candidates []*replica
		for _, r := range rs.all {
			if r.isRunning() && !rs.mortal[r] && !rs.killed[r] && !rs.frozen[r] && !rs.retired[r] {
				candidates = append(candidates, r)
			}
		}
		if len(candidates) == 0 {
			return false, nil
		}
		victim = choose(candidates)
		return victim != nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("ledger: no replica runs: %w%s", err, rs.logs())
	}
	return victim, nil
}

// awaitMortals waits for the last replica to have killed itself.
func (rs *replicas) awaitMortals(ctx context.Context) error {
	gone := make(chan struct{})
	go func() {
		rs.mortals.Wait() // they end with ctx at the latest
		close(gone)
	}()
	select {
	case <-gone:
		return context.Cause(ctx)
	case <-time.After(rs.config.Patience):
		return errors.New("ledger: a replica that was to kill itself has not done it; it saw too few batches")
	}
}

// stop ends all replicas in an orderly way.
func (rs *replicas) stop() {
	rs.mu.Lock()
	rs.stopping = true
	for _, r := range rs.all {
		_ = r.stdin.Close() // those that are dead have closed it
	}
	rs.mu.Unlock()
	rs.supervisors.Wait()
}

// logs is the end of what each living replica said.
func (rs *replicas) logs() string {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var text strings.Builder
	for _, r := range rs.all {
		if !rs.killed[r] && !rs.mortal[r] {
			fmt.Fprintf(&text, "\nlog of replica %d:\n%s", r.number, r.log.tail())
		}
	}
	return text.String()
}

// errors is what the replicas logged as such.
func (rs *replicas) errors() (lines []string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.all {
		lines = append(lines, r.log.lines("level=ERROR")...)
	}
	return lines
}

// races reports a data race in a replica, also in one that was killed before it could
// exit with the race detector's code.
func (rs *replicas) races() error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.all {
		if len(r.log.lines("WARNING: DATA RACE")) > 0 {
			return fmt.Errorf("ledger: data race in replica %d:\n%s", r.number, r.log.tail())
		}
	}
	return nil
}

func errOr(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}

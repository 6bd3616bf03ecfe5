package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/watermill-outbox/outbox/examples/internal/servers"
)

// supervisor keeps a forwarder running in a process of its own, as systemd or
// Kubernetes would: when it dies, it is started again.
type supervisor struct {
	addresses servers.Addresses
	// dieAfter is when each life ends; further lives do not.
	dieAfter []int
	// onDeath is told how many events were published and not settled.
	onDeath func(unsettled int)

	died atomic.Int64
}

// deaths plans two of them: each after a quarter of the orders' number of events.
func deaths(orders int) []int {
	const kills, part = 2, 4
	plan := make([]int, kills)
	for i := range plan {
		plan[i] = max(1, orders/part)
	}
	return plan
}

// deaths is how often the forwarder was killed.
func (s *supervisor) deaths() int { return int(s.died.Load()) }

func (s *supervisor) run(ctx context.Context) error {
	for life := 0; ctx.Err() == nil; life++ {
		dieAfter := 0
		if life < len(s.dieAfter) {
			dieAfter = s.dieAfter[life]
		}
		if err := s.live(ctx, dieAfter); err != nil {
			return fmt.Errorf("forwarder process: %w", err)
		}
	}
	return nil
}

// live runs a forwarder until it dies as planned or ctx ends.
func (s *supervisor) live(ctx context.Context, dieAfter int) error {
	config, err := json.Marshal(forwarderConfig{Addresses: s.addresses, DieAfter: dieAfter})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self) //nolint:gosec // this very program
	cmd.Env = append(os.Environ(), forwarderVariable+"="+string(config))
	cmd.Env = append(cmd.Env, s.addresses.BrokerVariables(brokerPrefix)...)
	cmd.SysProcAttr = ownGroup()
	cmd.Stderr = os.Stderr
	var lastWords bytes.Buffer
	cmd.Stdout = &lastWords
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	// The end of its input asks it to stop; the delay is for one that does not.
	cmd.Cancel = stdin.Close
	cmd.WaitDelay = 2 * longestStop
	if err = cmd.Start(); err == nil {
		err = cmd.Wait()
	}
	if unsettled, ok := planned(lastWords.String()); ok {
		s.died.Add(1)
		s.onDeath(unsettled)
		return nil
	}
	started := cmd.ProcessState != nil
	if started && interrupted(cmd.ProcessState) || ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		return nil
	}
	if err == nil {
		err = errors.New("it ended although nobody asked it to")
	}
	return err
}

// planned tells a planned death, which announces itself, from any other.
func planned(lastWords string) (unsettled int, ok bool) {
	first, _, _ := strings.Cut(lastWords, "\n") // two workers may have died at once
	unsettled, err := strconv.Atoi(first)
	return unsettled, err == nil
}

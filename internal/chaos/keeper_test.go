package chaos_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// keeper is a process that outlives the suite by a moment. When the suite is done, or dead,
// however hard it died, it stops the suite's servers and removes what they have written.
type keeper struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	output bytes.Buffer
}

// keeperVariable holds the servers of a process that is to be a keeper.
const keeperVariable = "CHAOS_KEEPER"

// kept crosses the border between processes as JSON.
type kept struct {
	Folder    string
	FirstPort int
}

func startKeeper(s *servers) (*keeper, error) {
	encoded, err := json.Marshal(kept{Folder: s.folder, FirstPort: s.firstPort})
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	k := &keeper{cmd: exec.Command(program)} //nolint:noctx // it must outlive every context
	k.cmd.Env = append(os.Environ(), keeperVariable+"="+string(encoded))
	k.cmd.Stdout, k.cmd.Stderr = &k.output, &k.output
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal to the suite's group meets it
	if k.stdin, err = k.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return k, nil
}

// end returns when the servers are gone.
func (k *keeper) end() error {
	_ = k.stdin.Close() // that is what it waits for
	if err := k.cmd.Wait(); err != nil {
		return fmt.Errorf("keeper: %w: %s", err, k.output.Bytes())
	}
	return nil
}

// noteFrozen tells of a child that cannot end by itself when the suite is dead.
func (k *keeper) noteFrozen(pid int) error {
	_, err := fmt.Fprintln(k.stdin, pid)
	return err
}

func runKeeperIfAsked() {
	encoded, asked := os.LookupEnv(keeperVariable)
	if !asked {
		return
	}
	if err := runKeeper(encoded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runKeeper(encoded string) error {
	var cfg kept
	if err := json.Unmarshal([]byte(encoded), &cfg); err != nil {
		return fmt.Errorf("%s: %w", keeperVariable, err)
	}
	var errs []error
	for frozen := bufio.NewScanner(os.Stdin); frozen.Scan(); { // whatever ends it
		pid, err := strconv.Atoi(frozen.Text())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer killStopped(pid)
	}
	s := &servers{folder: cfg.Folder, firstPort: cfg.FirstPort}
	for _, script := range []string{"pgbouncer.sh", "kafka.sh", "rabbitmq.sh", "postgres.sh"} {
		errs = append(errs, s.stop(context.Background(), script))
	}
	return errors.Join(append(errs, os.RemoveAll(cfg.Folder))...)
}

// killStopped spares a process that goes on, and any other that has got its number.
func killStopped(pid int) {
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err == nil && program == own && isInState(pid, "T") {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
	}
}

func isInState(pid int, state string) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(status), ") "+state+" ")
}

// isGone: nobody may wait for a process that a script has started.
func isGone(pid int) bool {
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || isInState(pid, "Z")
}

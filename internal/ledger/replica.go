package ledger

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// replica is a forwarder in a process of its own.
type replica struct {
	number  int
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	log     log
	running chan struct{} // closed once the forwarder runs
	halted  chan struct{} // says that it has halted where it was told to
	done    chan struct{} // closed once the process is gone
	err     error         // what came of it; read after done
}

func startReplica(ctx context.Context, number int, cfg childConfig) (*replica, error) {
	encoded, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("replica %d: %w", number, err)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("replica %d: %w", number, err)
	}
	r := &replica{number: number, running: make(chan struct{}), halted: make(chan struct{}, 1), done: make(chan struct{})}
	r.cmd = exec.CommandContext(ctx, program)
	r.cmd.Env = append(os.Environ(), childVariable+"="+string(encoded))
	r.cmd.Stderr = &r.log
	r.cmd.WaitDelay = 5 * time.Second
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("replica %d: %w", number, err)
	}
	r.stdin = stdin
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("replica %d: %w", number, err)
	}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("replica %d: %w", number, err)
	}
	go r.watch(stdout)
	return r, nil
}

func (r *replica) watch(stdout io.Reader) {
	defer close(r.done)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		switch lines.Text() {
		case runningLine:
			close(r.running)
		case haltedLine:
			r.halted <- struct{}{}
		}
	}
	r.err = r.cmd.Wait()
}

func (r *replica) isRunning() bool {
	select {
	case <-r.done:
		return false
	default:
	}
	select {
	case <-r.running:
		return true
	default:
		return false
	}
}

// diedBySignal is meant for after done.
func (r *replica) diedBySignal() bool { return r.cmd.ProcessState.ExitCode() == -1 }

// log keeps what a process has said.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines returns those that hold what.
func (l *log) lines(what string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		if bytes.Contains(line, []byte(what)) {
			found = append(found, string(bytes.TrimSpace(line)))
		}
	}
	return found
}

// tail is the end of it, for a message to people.
func (l *log) tail() string {
	const most = 2000
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.Bytes()
	return string(text[max(0, len(text)-most):])
}

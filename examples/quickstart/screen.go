package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// screen shows what happens: lines on stdout, and on a terminal a bar below them. It
// is safe for concurrent use.
type screen struct {
	mu  sync.Mutex
	bar *progressbar.ProgressBar // nil: no terminal
}

func newScreen(orders int) *screen {
	if !term.IsTerminal(int(os.Stdout.Fd())) || !term.IsTerminal(int(os.Stderr.Fd())) {
		return &screen{}
	}
	return &screen{bar: progressbar.NewOptions(orders,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription("orders paid     "),
		progressbar.OptionSetWidth(40),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)}
}

func (s *screen) linef(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear() // a bar that cannot be drawn harms nobody
	}
	fmt.Printf("%-16s "+format+"\n", append([]any{who}, args...)...)
}

func (s *screen) progress(paid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Set(paid)
	}
}

func (s *screen) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear()
		s.bar = nil
	}
}

//go:build unix

package main

import (
	"os"
	"syscall"
)

// ownGroup keeps a terminal's Ctrl-C from a child: the parent hears it, and asks the
// child to stop.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// interrupted says that Ctrl-C hit a child all the same, in the moment between its
// birth and the change of its group.
func interrupted(state *os.ProcessState) bool {
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGINT
}

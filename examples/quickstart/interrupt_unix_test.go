//go:build unix

package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A terminal's Ctrl-C goes to every process of the group, at any moment.
func TestInterruptEndsOrderly(t *testing.T) {
	t.Parallel()
	for _, broker := range brokers {
		for _, moment := range []string{"servers", "order service", "killed hard"} {
			t.Run(broker+" after "+moment, func(t *testing.T) {
				t.Parallel()
				demo := newProgram(t, "-broker="+broker, "-orders=1000")
				demo.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				demo.start(t)
				demo.awaitLine(t, moment)
				require.NoError(t, syscall.Kill(-demo.Process.Pid, syscall.SIGINT))
				require.Error(t, demo.Wait())
				require.Equal(t, exitInterrupted, demo.ProcessState.ExitCode(), "%s", &demo.stderr)
				require.Contains(t, demo.stderr.String(), "interrupted: ")
				require.NotContains(t, demo.stderr.String(), "forwarder process")
				require.NotContains(t, demo.stderr.String(), "level=", "a library's log")
				demo.requireNothingLeft(t)
			})
		}
	}
}

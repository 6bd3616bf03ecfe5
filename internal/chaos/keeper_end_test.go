package chaos_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// victimVariable makes of a process a suite that waits to be killed, with its servers in
// the folder that it names.
const victimVariable = "CHAOS_VICTIM"

// A suite that is killed leaves no server, no file and no frozen child.
func TestNothingIsLeftOfASuiteThatIsKilled(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "chaos-victim-") //nolint:usetesting // its files are the servers' users'
	require.NoError(t, err)
	require.NoError(t, os.Chmod(folder, 0o755))
	program, err := os.Executable()
	require.NoError(t, err)
	victim := exec.CommandContext(context.WithoutCancel(t.Context()), program)
	victim.Env = append(os.Environ(), victimVariable+"="+folder)
	victim.Stderr = os.Stderr
	stdout, err := victim.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, victim.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	var pids []int
	for field := range strings.FieldsSeq(line) {
		pid, err := strconv.Atoi(field)
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, 0))
		pids = append(pids, pid)
	}
	require.Len(t, pids, 2)

	require.NoError(t, victim.Process.Kill())
	require.Error(t, victim.Wait())
	require.NoError(t, await(t.Context(), "nothing is left", func() (bool, error) {
		for _, pid := range pids {
			if !isGone(pid) {
				return false, nil
			}
		}
		_, err := os.Stat(folder)
		return os.IsNotExist(err), nil
	}))
}

func runVictimIfAsked() {
	folder, asked := os.LookupEnv(victimVariable)
	if !asked {
		return
	}
	fmt.Fprintln(os.Stderr, runVictim(folder))
	os.Exit(1)
}

// runVictim says the pids of a server and of a child that is stopped, and waits.
func runVictim(folder string) error {
	s := &servers{folder: folder, firstPort: 31_500 + os.Getpid()%500}
	keeper, err := startKeeper(s)
	if err != nil {
		return err
	}
	if err := s.start(context.Background(), "postgres.sh"); err != nil {
		return err
	}
	server, err := s.pid("postgres.sh")
	if err != nil {
		return err
	}
	child, err := startKeeper(&servers{folder: filepath.Join(folder, "none")}) // any process of this program
	if err != nil {
		return err
	}
	frozen := child.cmd.Process
	if err := errors.Join(frozen.Signal(syscall.SIGSTOP), keeper.noteFrozen(frozen.Pid)); err != nil {
		return err
	}
	fmt.Println(server, frozen.Pid)
	<-time.After(time.Hour)
	return errors.New("nobody has killed the victim")
}

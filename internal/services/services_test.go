// Package services_test holds the scripts and the Makefile against surroundings that
// are not a developer's usual ones.
package services_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clone is a copy of the repository's scripts, without its code.
type clone struct {
	path string
	// bin is the first folder of the PATH.
	bin string
}

func newClone(t *testing.T, name string) clone {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	temp := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(temp), 0o755))
	c := clone{path: filepath.Join(temp, name), bin: filepath.Join(temp, "bin")}
	require.NoError(t, os.CopyFS(filepath.Join(c.path, "internal/services"), os.DirFS(filepath.Join(root, "internal/services"))))
	require.NoError(t, os.CopyFS(filepath.Join(c.path, ".ci"), os.DirFS(filepath.Join(root, ".ci"))))
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	c.write(t, filepath.Join(c.path, "Makefile"), string(makefile))
	c.write(t, filepath.Join(c.path, "go.mod"), "module m\n")
	c.write(t, filepath.Join(c.path, "examples/go.mod"), "module m/examples\n")
	return c
}

func (c clone) write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
}

// program puts a shell script into the PATH, before everything else.
func (c clone) program(t *testing.T, name, script string) {
	t.Helper()
	c.write(t, filepath.Join(c.bin, name), "#!/bin/sh\n"+script+"\n")
}

// run returns what a command prints, in the clone and with more variables.
func (c clone) run(t *testing.T, variables []string, command string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute) // a clean-up runs commands too
	defer cancel()
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Dir = c.path
	cmd.Env = append(os.Environ(), "PATH="+c.bin+":"+os.Getenv("PATH"), "MAKEFLAGS=", "MAKELEVEL=")
	cmd.Env = append(cmd.Env, variables...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	return out.String(), problems.String(), err
}

func (c clone) mustRun(t *testing.T, variables []string, command string, args ...string) (stdout string) {
	t.Helper()
	stdout, stderr, err := c.run(t, variables, command, args...)
	require.NoError(t, err, "%s%s", stdout, stderr)
	return stdout
}

// common runs a script that knows what common.sh defines.
func (c clone) common(t *testing.T, variables []string, script string) (stdout string) {
	t.Helper()
	return c.mustRun(t, variables, "bash", "-c", "service=test; source internal/services/common.sh; "+script)
}

func TestCDPATH(t *testing.T) {
	t.Parallel()
	c, other := newClone(t, "clone"), newClone(t, "other")
	c.program(t, "go", "pwd")
	variables := []string{"CDPATH=" + other.path}
	require.Equal(t, c.path+"/examples\n", c.mustRun(t, variables, "make", "demo"))
	require.Equal(t, c.path+"\n"+c.path+"/examples\n", c.mustRun(t, variables, "make", "tidy"))
	require.Equal(t, c.path+"\n", c.common(t, variables, `echo "$root"`))

	c.program(t, "make", "pwd")
	require.Equal(t, c.path+"\n", c.mustRun(t, variables, "bash", ".ci/run"))
}

// Without its modules, 'make test' would have nothing to find fault with.
func TestMakeWithoutFind(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"fails": `exit 1`, "fails halfway": `echo ./go.mod; exit 1`, "finds nothing": ``,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClone(t, "clone")
			c.program(t, "find", script)
			c.program(t, "go", "")
			_, stderr, err := c.run(t, nil, "make", "lint")
			require.Error(t, err)
			require.Contains(t, stderr, "cannot find the modules")
		})
	}
}

func TestPathOfTheClone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a,b", "a b", "it's", `say "a"`, "a:b", "clöne", `a\b`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClone(t, name)
			c.program(t, "go", `printf '%s\n' "$@"`)
			said := c.mustRun(t, nil, "make", "lint")
			require.Contains(t, said, "\n-modfile="+c.path+"/tools/go.mod\n")
			require.Contains(t, said, "\n"+c.path+"/.golangci.yml\n")

			state := c.common(t, nil, `choose_user; open_state; printf %s "$state"`)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(state)) })
			require.Regexp(t, `^[A-Za-z0-9/._+-]+$`, state)
			found, err := filepath.EvalSymlinks(filepath.Join(c.path, ".services"))
			require.NoError(t, err)
			require.Equal(t, state, found)
		})
	}
}

// A start that is interrupted leaves a server that is still starting. The next one waits
// for it, rather than find its folder taken.
func TestStartAfterAnInterruptedOne(t *testing.T) {
	t.Parallel()
	c := newClone(t, "clone")
	variables := []string{"AMQP_URI=", "SERVICES_DIR=", fmt.Sprintf("SERVICES_RABBITMQ_PORT=%d", threeFreePorts(t))}
	const script = "internal/services/rabbitmq.sh"
	t.Cleanup(func() { c.mustRun(t, variables, script, "stop") })
	const interrupted = script + ` start & until [[ -s .services/rabbitmq/pid ]]; do sleep 0.01; done; kill -KILL $!; wait`
	c.mustRun(t, variables, "bash", "-c", interrupted)
	require.Contains(t, c.mustRun(t, variables, script, "start"), "rabbitmq: answers at ")
	require.Contains(t, c.mustRun(t, variables, script, "start"), "rabbitmq: answers at ")
}

// threeFreePorts returns the first of three: a node of RabbitMQ takes as many.
func threeFreePorts(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := freePort(t)
		if isFree(t, port+1) && isFree(t, port+2) {
			return port
		}
	}
	require.FailNow(t, "no three free ports")
	return 0
}

func isFree(t *testing.T, port int) bool {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	require.NoError(t, listener.Close())
	return true
}

func TestAptGetUpdateWaitsForItsLock(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("packages are installed by root alone")
	}
	c := newClone(t, "clone")
	c.program(t, "apt-get", `
		case "$*" in
		*update) echo >>tries; test "$(wc -l <tries)" -ge 2 || {
			echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)' >&2; exit 100; };;
		*) echo "$*" >installed;;
		esac`)
	said := c.common(t, nil, `cd "$root"; state=$root; apt_install some-package && cat installed`)
	require.Contains(t, said, "install --no-install-recommends some-package")

	c.program(t, "apt-get", `echo 'E: The repository is not signed.' >&2; exit 100`)
	said = c.common(t, nil, `state=$root; apt_install some-package || echo "given up"`)
	require.Contains(t, said, "given up")
}

func TestPostgresOfTheUsers(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:54329"
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Skip("it would start one at the default address")
	}
	require.NoError(t, conn.Close())
	c := newClone(t, "clone")
	said := c.mustRun(t, []string{
		"POSTGRES_DSN=", "SERVICES_POSTGRES_PORT=", "SERVICES_TIMEOUT=5", "SERVICES_DIR=" + filepath.Join(c.path, "state"),
		"PGHOSTADDR=127.0.0.2", "PGTARGETSESSIONATTRS=standby", "PGSERVICE=none", "PGCLIENTENCODING=none", "PGREQUIREAUTH=none",
	}, "bash", "internal/services/postgres.sh", "start")
	require.Contains(t, said, "answers at "+address)
}

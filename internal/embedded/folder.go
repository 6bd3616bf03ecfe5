package embedded

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// folder is the one place that a server writes to. It belongs to the server's
// account, which removes it at the end.
type folder struct {
	path    string
	account *account // nil: this process's own
}

// newFolder makes a folder below the temp folder, or below /tmp or /var/tmp if
// that one is not for the server's account too: initdb fails where it cannot
// reach its own working directory, and the child must be able to remove the
// folder on its own.
func newFolder(acc *account) (folder, error) {
	bases := []string{os.TempDir(), "/tmp", "/var/tmp"}

	base := slices.IndexFunc(bases, func(dir string) bool {
		return enterable(dir, acc) && permitted(dir, acc, everyoneWrites)
	})
	if base < 0 {
		return folder{}, fmt.Errorf("embedded: no temp folder that the server%s can use, of %q", acc.suffix(), bases)
	}

	path, err := os.MkdirTemp(bases[base], "outbox-postgres-*")
	if err != nil {
		return folder{}, fmt.Errorf("embedded: temp folder: %w", err)
	}

	f := folder{path: path, account: acc}

	if acc != nil {
		if err := os.Chown(path, acc.uid, acc.gid); err != nil {
			_ = f.remove()

			return folder{}, fmt.Errorf("embedded: temp folder: %w", err)
		}
	}

	return f, nil
}

func (f folder) remove() error {
	if err := os.RemoveAll(f.path); err != nil {
		return fmt.Errorf("embedded: temp folder: %w", err)
	}

	return nil
}

// executable is this program, in a place where the server's account can
// execute it: the builds of go run and go test lie in private folders.
func (f folder) executable() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}

	if f.account == nil {
		return path, nil
	}

	from, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("copy this program: %w", err)
	}
	defer from.Close()

	// A process that another goroutine forks meanwhile would inherit the open
	// file until its exec, and Linux refuses to execute a file that is open
	// for writing.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	copied := filepath.Join(f.path, "keeper")

	to, err := os.OpenFile(copied, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return "", fmt.Errorf("copy this program: %w", err)
	}

	_, err = io.Copy(to, from)
	if err == nil {
		err = to.Chmod(0o755) // whatever the umask
	}

	if closeErr := to.Close(); err == nil {
		err = closeErr
	}

	if err != nil {
		return "", fmt.Errorf("copy this program: %w", err)
	}

	return copied, nil
}

// childEnv is the child's whole environment. It names what the child needs, as
// the rest may hold secrets that the server's account should not see, or PG…
// variables that change what its programs do.
func (f folder) childEnv(task childTask) ([]string, error) {
	text, err := json.Marshal(task)
	if err != nil {
		return nil, fmt.Errorf("encode task: %w", err)
	}

	env := []string{
		childVariable + "=" + string(text),
		"HOME=" + filepath.Join(f.path, "home"),
		"TMPDIR=" + filepath.Join(f.path, "tmp"),
		"LC_ALL=C",
		fmt.Sprintf("PGCTLTIMEOUT=%d", int(startGrace.Seconds())),
	}

	for _, name := range []string{"PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}

	return env, nil
}

const (
	everyoneExecutes fs.FileMode = 0o001 // enters, for a folder
	everyoneWrites   fs.FileMode = 0o002
)

// permitted tells whether the account may do something with a file. For this
// process's own account that shows when it is done; for another one it looks
// at the bits for everyone, since that owns nothing and is in no group that
// matters here.
func permitted(path string, acc *account, everyone fs.FileMode) bool {
	if acc == nil {
		return true
	}

	info, err := os.Stat(path)

	return err == nil && info.Mode()&everyone != 0
}

// enterable tells whether the account can reach what lies in dir.
func enterable(dir string, acc *account) bool {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return false
	}

	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}

	for permitted(dir, acc, everyoneExecutes) {
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}

		dir = parent
	}

	return false
}

//go:build unix

package embedded

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is the user that a server runs as. Nil means this process's own.
type account struct {
	name     string
	uid, gid int
}

// serverAccount picks whom Postgres runs as: it refuses root.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil is this process's own account.
	}

	var errs []error

	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			errs = append(errs, err)

			continue
		}

		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)

		if err := errors.Join(uidErr, gidErr); err != nil {
			errs = append(errs, err)

			continue
		}

		return &account{name: name, uid: int(uid), gid: int(gid)}, nil
	}

	return nil, fmt.Errorf("embedded: no user to run postgres as, which refuses root: %w", errors.Join(errs...))
}

// processAttr puts a process into a group of its own, which a terminal's
// Ctrl-C does not reach, and under the account.
func (a *account) processAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}

	return attr
}

// suffix names an account in messages.
func (a *account) suffix() string {
	if a == nil {
		return ""
	}

	return " as user " + a.name
}

// killGroup ends the process group that processAttr made, at once.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("embedded: kill the server child: %w", err)
	}

	return nil
}

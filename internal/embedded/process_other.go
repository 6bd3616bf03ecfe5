//go:build !unix

package embedded

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// account is the user that a server runs as. Nil, this process's own, is the
// only one here.
type account struct{ uid, gid int }

func serverAccount() (*account, error) {
	return nil, nil //nolint:nilnil // nil is this process's own account.
}

func (a *account) processAttr() *syscall.SysProcAttr { return nil }

func (a *account) suffix() string { return "" }

func killGroup(pid int) error {
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("embedded: kill the server child: %w", err)
	}

	if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("embedded: kill the server child: %w", err)
	}

	return nil
}

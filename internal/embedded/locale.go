package embedded

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// offerLocale makes the task's locale in the child's folder, and leads the server there:
// a machine has few locales, and only root adds to them.
func offerLocale(ctx context.Context, task childTask) error {
	if task.Locale == "" || runtime.GOOS != "linux" {
		return nil
	}

	definition, charset, ok := strings.Cut(task.Locale, ".")
	if !ok {
		return fmt.Errorf("locale %q: want a name with its charset, such as de_DE.UTF-8", task.Locale)
	}

	dir := filepath.Join(task.Dir, "locale")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("locale %q: %w", task.Locale, err)
	}

	localedef := exec.CommandContext(ctx, "localedef", "-i", definition, "-f", charset, filepath.Join(dir, task.Locale))
	if out, err := localedef.CombinedOutput(); err != nil {
		return fmt.Errorf("make the locale %q (on Debian its source is in the package locales): %w: %s",
			task.Locale, err, bytes.TrimSpace(out))
	}

	if err := os.Setenv("LOCPATH", dir); err != nil {
		return fmt.Errorf("locale %q: %w", task.Locale, err)
	}

	return nil
}

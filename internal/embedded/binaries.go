package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pgConfigTimeout bounds a call of pg_config, which only prints a line.
const pgConfigTimeout = 10 * time.Second

// packageFolders is where packages put servers beside each other: Debian's,
// the Postgres project's for RPM, Homebrew's for Apple and for Intel machines.
var packageFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
}

// findBinaries returns the folder of an installed server's programs, or "" if
// there is none that the account can execute. A wanted folder is taken as it
// is, or refused.
func findBinaries(ctx context.Context, wanted string, acc *account) (string, error) {
	if wanted != "" {
		dir, err := usableBinaries(wanted, acc)
		if err != nil {
			return "", fmt.Errorf("BinariesDir: %w", err)
		}

		return dir, nil
	}

	candidates := newestFirst(packageFolders)

	if dir, ok := pgConfigBindir(ctx); ok {
		candidates = append(candidates, dir)
	}

	// A program on PATH is often a link into the folder that holds them all.
	if path, err := exec.LookPath("pg_ctl"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, filepath.Dir(path))
		}
	}

	for _, candidate := range candidates {
		if dir, err := usableBinaries(candidate, acc); err == nil {
			return dir, nil
		}
	}

	return "", nil
}

// newestFirst expands the patterns and orders their folders by the number of
// the release in the path.
func newestFirst(patterns []string) []string {
	var dirs []string

	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err == nil {
			dirs = append(dirs, found...)
		}
	}

	slices.SortStableFunc(dirs, func(a, b string) int {
		return slices.Compare(releaseOf(b), releaseOf(a))
	})

	return dirs
}

var releaseNumber = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)*`)

// releaseOf reads the release, the last number in a path such as
// /usr/lib/postgresql/9.6/bin.
func releaseOf(dir string) []int {
	numbers := releaseNumber.FindAllString(dir, -1)
	if len(numbers) == 0 {
		return nil
	}

	var release []int

	for part := range strings.SplitSeq(numbers[len(numbers)-1], ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}

		release = append(release, n)
	}

	return release
}

func pgConfigBindir(ctx context.Context) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, pgConfigTimeout)
	defer cancel()

	out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output()
	dir := strings.TrimSpace(string(out))

	return dir, err == nil && dir != ""
}

// usableBinaries returns dir as an absolute path if the account can execute a
// whole server in it. pg_config may come with the client's packages alone.
func usableBinaries(dir string, acc *account) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("absolute path: %w", err)
	}

	for _, name := range []string{"initdb", "pg_ctl", "postgres"} {
		path, err := exec.LookPath(filepath.Join(dir, name))
		if err != nil {
			return "", err //nolint:wrapcheck // it names the program and the reason.
		}

		// What counts is the program, not the link to it.
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target
		}

		if !enterable(dir, acc) || !enterable(filepath.Dir(path), acc) || !permitted(path, acc, everyoneExecutes) {
			return "", &os.PathError{
				Op: "execute" + acc.suffix(), Path: path, Err: errors.New("not permitted to that user"),
			}
		}
	}

	return dir, nil
}

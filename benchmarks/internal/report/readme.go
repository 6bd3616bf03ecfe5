package report

import (
	"errors"
	"os"
	"strings"
)

// Begin and End mark the part of a README that is made from a run.
const (
	Begin = "<!-- begin of what `make bench-readme` writes -->"
	End   = "<!-- end of what `make bench-readme` writes -->"
)

// UpdateReadme puts text between the marks.
func UpdateReadme(file, text string) error {
	old, err := os.ReadFile(file) //nolint:gosec // the file is the caller's
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(old), Begin)
	_, after, ends := strings.Cut(rest, End)
	if !begins || !ends {
		return errors.New(file + " lacks the marks between which the results stand")
	}
	updated := before + Begin + "\n\n" + strings.TrimSpace(text) + "\n\n" + End + after
	return os.WriteFile(file, []byte(updated), 0o644) //nolint:gosec // everybody may read it
}

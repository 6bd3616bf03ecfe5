package broker

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrInvalidConfig says that a Config cannot work; the error that wraps it names the
// key, where it was set, and what is allowed.
var ErrInvalidConfig = errors.New("broker: invalid config")

// keyError is what is wrong with one key.
type keyError struct {
	key string
	// source is where the key was set: a line of a file, an environment variable. Empty:
	// nowhere, or in Go.
	source string
	err    error
}

func (e *keyError) Error() string {
	place := e.key
	if e.source != "" {
		place += " (" + e.source + ")"
	}
	return fmt.Sprintf("%v: %s: %v", ErrInvalidConfig, place, e.err)
}

func (e *keyError) Unwrap() []error { return []error{ErrInvalidConfig, e.err} }

func keyErrorf(key, format string, args ...any) *keyError {
	return &keyError{key: key, err: fmt.Errorf(format, args...)}
}

func asErrors(problems []*keyError) []error {
	errs := make([]error, len(problems))
	for i, problem := range problems {
		errs[i] = problem
	}
	return errs
}

// plainName matches what is surely no address: a URI may stand in a wrong place, and
// its password with it.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// shown quotes a value for an error, unless it may hold a secret.
func shown(value string) string {
	if value == "" || plainName.MatchString(value) {
		return `"` + value + `"`
	}
	return "a value that is not shown here"
}

func quoted[T ~string](names []T) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = `"` + string(name) + `"`
	}
	if last := len(list) - 1; last > 0 {
		return strings.Join(list[:last], ", ") + " and " + list[last]
	}
	return strings.Join(list, "")
}

package broker

import (
	"fmt"
	"io"
	"log/slog"
)

// Secret is a password. However it is printed, logged or marshalled, it is masked, within
// the limits that URI has. string(secret) is the real one.
type Secret string

// String returns a mask, or nothing where there is nothing to be masked.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// Format masks for all verbs: without it, %d and %x print the bytes.
func (s Secret) Format(state fmt.State, verb rune) {
	if verb == 'q' || (verb == 'v' && state.Flag('#')) {
		_, _ = fmt.Fprintf(state, "%q", s.String())
		return
	}
	_, _ = io.WriteString(state, s.String())
}

// MarshalText makes JSON and YAML masked. What they write cannot be loaded again: the
// mask is not taken for a password.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue makes slog's handlers print it masked.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

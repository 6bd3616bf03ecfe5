package broker

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
)

// URI is an address that may hold a password. However it is printed, logged or
// marshalled, the password is masked; what cannot be parsed is masked as a whole.
// string(uri) is the real one.
//
// Package fmt does not ask unexported fields how they want to be printed, nor what is
// behind a pointer to a struct that it prints with a verb for text (%s): a struct of
// yours that keeps a Config so needs a String method of its own.
type URI string

// mask is what net/url's Redacted puts in a password's place.
const mask = "xxxxx"

// String returns the URI with its password and its query masked.
func (u URI) String() string {
	if u == "" {
		return ""
	}
	parsed, err := url.Parse(string(u))
	if err != nil || !isUnambiguous(parsed) {
		return mask
	}
	if parsed.RawQuery != "" {
		parsed.RawQuery = mask
	}
	return parsed.Redacted()
}

// isUnambiguous says that nothing of a password can stand outside of its place. One that
// holds a / or # and is not percent-encoded ends the host for a parser of URIs.
func isUnambiguous(u *url.URL) bool {
	knownScheme := u.Scheme == "amqp" || u.Scheme == "amqps"
	rest := u.Opaque + u.Fragment
	return knownScheme && rest == "" && !isSplitAtSign(u) && !strings.Contains(u.User.Username(), ":")
}

func isSplitAtSign(u *url.URL) bool {
	return strings.Contains(u.EscapedPath()+u.RawQuery+u.EscapedFragment(), "@")
}

// Format masks for all verbs: without it, %d and %x print the bytes.
func (u URI) Format(state fmt.State, verb rune) {
	if verb == 'q' || (verb == 'v' && state.Flag('#')) {
		_, _ = fmt.Fprintf(state, "%q", u.String())
		return
	}
	_, _ = io.WriteString(state, u.String())
}

// MarshalText makes JSON and YAML masked. What they write cannot be loaded again: the
// mask is not taken for a password.
func (u URI) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// LogValue makes slog's handlers print it masked.
func (u URI) LogValue() slog.Value { return slog.StringValue(u.String()) }

var (
	errAtSign = errors.New("an @ stands after the host: percent-encode special characters of the password (/ is %2F, # is %23, @ is %40)")
	errOpaque = errors.New("two slashes are missing: amqp://user:password@host:5672/vhost is needed")
	errMasked = errors.New("the password is masked: a printed configuration was copied, the real one is needed")
)

// check finds what the client library would read in another way than it was meant.
// Whatever else is wrong is found by package forwarder/amqp.
func (u URI) check() error {
	parsed, err := url.Parse(string(u))
	if err != nil {
		return nil //nolint:nilerr // forwarder/amqp says so, without the password
	}
	if parsed.Opaque != "" {
		return errOpaque
	}
	if isSplitAtSign(parsed) {
		return errAtSign
	}
	if password, ok := parsed.User.Password(); (ok && password == mask) || u == mask {
		return errMasked
	}
	return nil
}

package forwarder

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxErrorGroup bounds a group's name, in bytes.
	maxErrorGroup = 200
	// maxErrorRead bounds how much of an error's text is looked at.
	maxErrorRead = 4096
	// minOwn is the length from which a message's own id or key is told from a word.
	minOwn = 3

	address = "<address>"
)

// varying is what differs from message to message in errors of one cause, each with what
// stands for it. They apply in this order. What remains of a text has no digits, but for
// codes.
var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	// RabbitMQ's reason is a quoted sentence, which is the cause itself.
	{regexp.MustCompile(`"([A-Z][A-Z_]+ - (?:[^"\\]|\\.)*)"`), `$1`},
	// A quote that is not closed was cut off.
	{regexp.MustCompile(`"(?:[^"\\]|\\.)*(?:"|\\?$)|` + "`[^`]*(?:`|$)"), `<text>`},
	// An apostrophe opens no quote.
	{regexp.MustCompile(`(^|[^\pL\pN])'[^']*'`), `$1<text>`},
	{regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s,;)]+`), address},
	{regexp.MustCompile(`[^\s@<>:,;()]+@[^\s@<>:,;()]+`), address},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|[+-]\d\d:?(?:\d\d)?))?`), `<time>`},
	{regexp.MustCompile(`\[[0-9a-fA-F]*:[0-9a-zA-Z:.%]*\](?::\d+)?`), address},
	{regexp.MustCompile(`(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}\b`), address},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+(?::\d+)?\b`), address},
	{regexp.MustCompile(`\b[\pL\pN_-]+(?:\.[\pL\pN_-]+)+:\d+\b`), address},
	{regexp.MustCompile(`[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`), `<uuid>`},
}

var (
	// opaque may be an id such as a ULID, or bytes in hexadecimal digits.
	opaque = regexp.MustCompile(`\b0[xX][0-9a-fA-F]+\b|\b[0-9a-fA-F]{8,}\b|\b[0-9A-Za-z_]{16,}\b`)
	// number does not match a code, such as AMQP's or HTTP's: three digits in parentheses.
	number = regexp.MustCompile(`\(\d{3}\)|[\p{Nd}](?:[\p{Nd}.,_]*[\p{Nd}])?`)
	// list is one of any length.
	list = regexp.MustCompile(`(<[a-z]+>)(?:[\s,;/|]+<[a-z]+>)+`)
)

// errorGroup is an error's text without what differs from message to message, so that
// errors of one cause have one: valid UTF-8 in one line, of at most 200 bytes. The
// message's own id and key are taken out, too, wherever the text names them.
func errorGroup(text string, own ...string) string {
	text = oneLine(text, maxErrorRead)
	for _, name := range own {
		text = replaceWord(text, oneLine(name, maxErrorRead), "<id>")
	}
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	text = opaque.ReplaceAllStringFunc(text, func(found string) string {
		if !strings.ContainsFunc(found, unicode.IsDigit) || !strings.ContainsFunc(found, unicode.IsLetter) {
			return found // a word, or a number
		}
		return "<id>"
	})
	text = number.ReplaceAllStringFunc(text, func(found string) string {
		if found[0] == '(' {
			return found
		}
		return "<n>"
	})
	text = list.ReplaceAllString(text, "$1")
	return oneLine(text, maxErrorGroup)
}

// oneLine makes single spaces of line breaks and the like, and cuts what is too long.
func oneLine(text string, maxBytes int) string {
	if len(text) > 2*maxBytes { // spaces may go
		text = text[:2*maxBytes]
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= maxBytes {
		return text
	}
	for maxBytes > 0 && !utf8.RuneStart(text[maxBytes]) {
		maxBytes--
	}
	return strings.TrimSpace(text[:maxBytes])
}

// replaceWord replaces word where it is not a part of a longer one.
func replaceWord(text, word, with string) string {
	if len(word) < minOwn {
		return text
	}
	var replaced strings.Builder
	for {
		at := strings.Index(text, word)
		if at < 0 {
			replaced.WriteString(text)
			return replaced.String()
		}
		end := at + len(word)
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[end:])
		replaced.WriteString(text[:at])
		if isWordRune(before) || isWordRune(after) {
			replaced.WriteString(word)
		} else {
			replaced.WriteString(with)
		}
		text = text[end:]
	}
}

func isWordRune(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

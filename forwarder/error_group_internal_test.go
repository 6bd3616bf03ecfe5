package forwarder

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestErrorGroup(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "",
		"forwarder: message refused: kafka: 2097152 bytes, the topic takes 1048576":             "forwarder: message refused: kafka: <n> bytes, the topic takes <n>",
		`Exception (404) Reason: "NOT_FOUND - no exchange 'orders' in vhost '/'"`:               "Exception (404) Reason: NOT_FOUND - no exchange <text> in vhost <text>",
		`Exception (403) Reason: "ACCESS_REFUSED - access to exchange 'orders' in vhost 'a b'"`: "Exception (403) Reason: ACCESS_REFUSED - access to exchange <text> in vhost <text>",
		"dial tcp 10.0.0.17:9092: connect: connection refused":                                  "dial tcp <address>: connect: connection refused",
		"dial tcp [2001:db8::1%eth0]:9092: i/o timeout":                                         "dial tcp <address>: i/o timeout",
		"read tcp 10.0.0.1:43210->10.0.0.2:5672: reset":                                         "read tcp <address>-><address>: reset",
		"kafka-0.kafka.svc.cluster.local:9092 said no":                                          "<address> said no",
		"open amqp://user:s3cret@rabbit/vhost, then wait":                                       "open <address>, then wait",
		"no such customer a.b+c@example.com":                                                    "no such customer <address>",
		"order 7f1c2f6e-7a5b-4f0e-9c39-0a4e6f1d2b3c is unknown":                                 "order <uuid> is unknown",
		"digest d41d8cd98f00b204e9800998ecf8427e does not fit 0xC0FFEE":                         "digest <id> does not fit <id>",
		"event 01ARZ3NDEKTSV4RRFFQ69G5FAV is unknown":                                           "event <id> is unknown",
		"at 2026-02-03T04:05:06.123456+01:00: too late":                                         "at <time>: too late",
		"at 2026-02-03 04:05:06 +0000: too late":                                                "at <time>: too late",
		"partitions 1, 2, 3, 15 are away":                                                       "partitions <n> are away",
		"strconv.Atoi: parsing \"12 \\\"a\\\" b\": invalid syntax":                              "strconv.Atoi: parsing <text>: invalid syntax",
		"invalid character '}' after object key":                                                "invalid character <text> after object key",
		"the broker's queue isn't there, the queues' names aren't either":                       "the broker's queue isn't there, the queues' names aren't either",
		"cannot read \"a payload that was cut off":                                              "cannot read <text>",
		"first line\nsecond\tline\r\n\x00 third":                                                "first line second line third",
		"key-15 of shard7 costs -1,234.50":                                                      "key-<n> of shard<n> costs -<n>",
		"Größe ３ ist zu groß \xff":                                                              "Größe <n> ist zu groß \uFFFD",
		"effaced defaced cafeface acknowledgement misconfiguration":                             "effaced defaced cafeface acknowledgement misconfiguration",
	} {
		require.Equal(t, want, errorGroup(text), text)
	}
}

// Ids and keys may be anything, and need not look like ids.
func TestErrorGroupLeavesOutTheMessagesOwnNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "cannot book <id> for <id>: no funds", errorGroup("cannot book Müller & Söhne for the-smiths: no funds", "Müller & Söhne", "the-smiths"))
	require.Equal(t, "<id> or <id> and Annabel", errorGroup("Anna or Anna and Annabel", "Anna"))
	require.Equal(t, "a message of no key", errorGroup("a message of no key", "a", ""), "words are no names")
}

// Whatever the messages are, the causes are three.
func TestErrorGroupsOfManyFailures(t *testing.T) {
	t.Parallel()
	groups := map[string]int{}
	for i := range 10_000 {
		id := fmt.Sprintf("%08x-0000-4000-8000-%012x", i*7919, i)
		text := map[int]string{
			0: fmt.Sprintf("message refused: %d bytes, the topic takes 1048576", 1<<20+i*i),
			1: fmt.Sprintf("metadata: invalid character '%c' looking for beginning of value in %q", 'a'+rune(i%26), strings.Repeat(id, i%9)),
			2: fmt.Sprintf("customer %s of order %d (%s) does not exist", id, i, id),
		}[i%3]
		groups[errorGroup(text, id)]++
	}
	require.Len(t, groups, 3, "%v", groups)
}

func FuzzErrorGroup(f *testing.F) {
	for _, text := range []string{"a 1", strings.Repeat("ö", 200), strings.Repeat("x 1 ", 5000), "\"\\", "'", "(404)", "\xff\x00", "<n> <n>", strings.Repeat(`"a"b`, 60)} {
		f.Add(text, "own")
	}
	f.Fuzz(func(t *testing.T, text, own string) {
		group := errorGroup(text, own)
		require.True(t, utf8.ValidString(group))
		require.LessOrEqual(t, len(group), 200)
		require.NotContains(t, group, "\x00")
		require.NotContains(t, group, "\n")
	})
}

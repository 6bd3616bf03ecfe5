package pgbouncertest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

// recorder takes all that is published, from any number of forwarders. It refuses some
// messages when it sees them first, so that they are delayed.
type recorder struct {
	mu      sync.Mutex
	msgs    []forwarder.Outgoing
	refused map[string]bool
}

func (r *recorder) publisher() batchPublisher { return batchPublisher{r} }

type batchPublisher struct{ recorder *recorder }

func (p batchPublisher) PublishBatch(ctx context.Context, msgs []forwarder.Outgoing) []error {
	return forwarder.Waves(ctx, msgs, p.recorder.send)
}

var errFirst = errors.New("it's the \"first\" attempt")

func (r *recorder) send(_ context.Context, wave []forwarder.Outgoing) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	results := make([]error, len(wave))
	for i, msg := range wave {
		if id := msg.Message.UUID; strings.HasSuffix(id, "5") && !r.refused[id] {
			if r.refused == nil {
				r.refused = map[string]bool{}
			}
			r.refused[id] = true
			results[i] = forwarder.Refused(errFirst)
			continue
		}
		r.msgs = append(r.msgs, msg)
	}
	return results
}

func (p batchPublisher) Publish(string, ...*message.Message) error {
	panic("the forwarder must use PublishBatch")
}

func (p batchPublisher) Close() error { return nil }

// counts says how often each message was published.
func (r *recorder) counts() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{}
	for _, msg := range r.msgs {
		counts[msg.Message.UUID]++
	}
	return counts
}

// altered lists what differs from the message that was written.
func (r *recorder) altered() (altered []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, got := range r.msgs {
		key, number, _ := strings.Cut(got.Message.UUID, "/")
		n, err := strconv.Atoi(number)
		want := newMessage(key, n)
		if err != nil || got.Destination != destination || got.PartitionKey != key ||
			!bytes.Equal(got.Message.Payload, want.Payload) || !maps.Equal(got.Message.Metadata, want.Metadata) {
			altered = append(altered, fmt.Sprintf("%s: %q %q", got.Message.UUID, got.Message.Payload, got.Message.Metadata))
		}
	}
	return altered
}

// refusals is how many messages were refused.
func (r *recorder) refusals() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.refused)
}

// requireOrder looks at the order in which a key's messages were published. What was
// rolled back gave its numbers back.
func (r *recorder) requireOrder(t *testing.T, key string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, msg := range r.msgs {
		if msg.PartitionKey == key {
			n++
			require.Equal(t, id(key, n), msg.Message.UUID)
		}
	}
	require.NotZero(t, n)
}

// errorLogger fails the test at whatever is logged as an error, but for what the
// recorder refuses.
type errorLogger struct{ t *testing.T }

func (l errorLogger) Error(msg string, err error, fields watermill.LogFields) {
	if !errors.Is(err, errFirst) {
		l.t.Errorf("logged: %s: %v %v", msg, err, fields)
	}
}

func (errorLogger) Info(string, watermill.LogFields)                   {}
func (errorLogger) Debug(string, watermill.LogFields)                  {}
func (errorLogger) Trace(string, watermill.LogFields)                  {}
func (l errorLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

package forwarder_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder"
)

func outgoing(destination, key, id string) forwarder.Outgoing {
	return forwarder.Outgoing{Destination: destination, PartitionKey: key, Message: message.NewMessage(id, nil)}
}

func TestWavesHoldOneMessageOfAUnitEach(t *testing.T) {
	t.Parallel()
	var waves [][]string
	results := forwarder.Waves(t.Context(), []forwarder.Outgoing{
		outgoing("x", "a", "xa1"), outgoing("x", "a", "xa2"), outgoing("x", "b", "xb1"),
		outgoing("y", "a", "ya1"), outgoing("x", "a", "xa3"), outgoing("x", "b", "xb2"),
	}, func(_ context.Context, wave []forwarder.Outgoing) []error {
		var sent []string
		results := make([]error, len(wave))
		for i, msg := range wave {
			sent = append(sent, msg.Message.UUID)
			if msg.Message.UUID == "xa2" {
				results[i] = forwarder.Refused(errTest)
			}
		}
		waves = append(waves, sent)
		return results
	})
	require.Equal(t, [][]string{{"xa1", "xb1", "ya1"}, {"xa2", "xb2"}}, waves)
	require.NoError(t, results[0])
	require.ErrorIs(t, results[1], forwarder.ErrRefused)
	require.NoError(t, results[2])
	require.NoError(t, results[3])
	require.ErrorIs(t, results[4], forwarder.ErrKeyHeld)
	require.NoError(t, results[5])
}

func TestWavesStopWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	sent := 0
	results := forwarder.Waves(ctx, []forwarder.Outgoing{
		outgoing("x", "a", "1"), outgoing("x", "a", "2"), outgoing("x", "a", "3"),
	}, func(_ context.Context, wave []forwarder.Outgoing) []error {
		sent++
		cancel()
		return make([]error, len(wave))
	})
	require.Equal(t, 1, sent)
	require.NoError(t, results[0])
	require.ErrorIs(t, results[1], forwarder.ErrUnavailable)
	require.ErrorIs(t, results[1], context.Canceled)
	require.ErrorIs(t, results[2], forwarder.ErrKeyHeld)
}

func TestWavesConfirmNothingWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, answers := range [][]error{nil, {nil}, {nil, nil, nil}} {
		results := forwarder.Waves(t.Context(), []forwarder.Outgoing{
			outgoing("x", "a", "1"), outgoing("x", "b", "2"), outgoing("x", "a", "3"),
		}, func(context.Context, []forwarder.Outgoing) []error { return answers })
		require.ErrorIs(t, results[0], forwarder.ErrUnavailable)
		require.ErrorIs(t, results[1], forwarder.ErrUnavailable)
		require.ErrorIs(t, results[2], forwarder.ErrKeyHeld)
	}
}

func TestMarkingNilStaysNil(t *testing.T) {
	t.Parallel()
	require.NoError(t, forwarder.Refused(nil))
	require.NoError(t, forwarder.Unavailable(nil))
	require.NoError(t, forwarder.DestinationUnavailable(nil))
	require.ErrorIs(t, forwarder.Refused(errTest), errTest)
}

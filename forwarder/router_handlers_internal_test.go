package forwarder

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// What is acked is forgotten, however long a subscription lasts and whatever the order
// of acks.
func TestUnsettledKeepsNoMoreThanTwiceWhatIsInFlight(t *testing.T) {
	t.Parallel()
	var u unsettled
	var inFlight []*message.Message
	for n := range 10_000 {
		msg := message.NewMessage("", nil)
		u.add(msg)
		inFlight = append(inFlight, msg)
		if len(inFlight) < 10 {
			continue
		}
		place := n % len(inFlight)
		if n%2 == 0 {
			inFlight[place].Ack()
		} else {
			inFlight[place].Nack()
		}
		inFlight = append(inFlight[:place], inFlight[place+1:]...)
		require.LessOrEqual(t, len(u.receipts), 2*10+1)
	}
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		u.wait()
	}()
	for _, msg := range inFlight {
		select {
		case <-waited:
			require.Fail(t, "a message is in flight")
		default:
		}
		msg.Ack()
	}
	<-waited
}

package chaos_test

import (
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// severToxic ends the connections that are there, and leaves later ones alone: as when
// a firewall forgets its connections, or a cable is pulled in the middle of a batch.
type severToxic struct {
	// Before is when a connection must have begun, in nanoseconds of Unix time.
	Before int64 `json:"before"`
	// Bytes still pass.
	Bytes int `json:"bytes"`
	// Silently drops what comes, also the word that one side has ended. Else both sides
	// are told.
	Silently bool `json:"silently"`
}

// severed is the toxic's type as proxies know it.
const severed = "sever"

func init() { toxics.Register(severed, new(severToxic)) } //nolint:gochecknoinits // as toxiproxy's own

// sever is a toxic for those connections that are there now.
func sever(stream string, bytes int, silently bool) toxic {
	return toxic{Type: severed, Stream: stream, Attributes: map[string]any{
		"before": time.Now().UnixNano(), "bytes": bytes, "silently": silently,
	}}
}

type severState struct {
	met  bool
	left int
}

// NewState is called when the toxic is added, or when a connection begins later.
func (s *severToxic) NewState() any {
	const slack = 100 * time.Millisecond // adding it takes a moment
	return &severState{met: time.Now().Add(-slack).UnixNano() < s.Before, left: s.Bytes}
}

func (s *severToxic) Pipe(stub *toxics.ToxicStub) {
	state := stub.State.(*severState)
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			silent := state.met && s.Silently && state.left <= 0
			switch {
			case chunk == nil && silent:
				<-stub.Interrupt
				return
			case chunk == nil:
				stub.Close()
				return
			case !state.met:
				stub.Output <- chunk
				continue
			}
			chunk.Data = chunk.Data[:min(len(chunk.Data), state.left)]
			state.left -= len(chunk.Data)
			if len(chunk.Data) > 0 {
				stub.Output <- chunk
			}
			if state.left <= 0 && !s.Silently {
				stub.Close()
				for range stub.Input { // else whoever reads from that side would wait for ever
				}
				return
			}
		}
	}
}

// Cleanup ends what was silent, so that nothing is left of it.
func (s *severToxic) Cleanup(stub *toxics.ToxicStub) {
	if state := stub.State.(*severState); state.met {
		stub.Close()
	}
}

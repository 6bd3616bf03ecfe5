package chaos_test

import (
	"bytes"

	"github.com/Shopify/toxiproxy/v2/toxics"
)

// inspectToxic ends each connection on which it sees certain words, as a firewall may that
// looks into what passes. Words that two chunks share escape it: say them more than once.
type inspectToxic struct {
	Words string `json:"words"`
}

// inspecting is the toxic's type as proxies know it.
const inspecting = "inspect"

func init() { toxics.Register(inspecting, new(inspectToxic)) } //nolint:gochecknoinits // as toxiproxy's own

func (i *inspectToxic) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			switch {
			case chunk == nil:
				stub.Close()
				return
			case bytes.Contains(chunk.Data, []byte(i.Words)):
				stub.Close()
				for range stub.Input { // else whoever reads from that side would wait for ever
				}
				return
			default:
				stub.Output <- chunk
			}
		}
	}
}

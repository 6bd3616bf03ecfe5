package rig

import (
	"crypto/rand"
	"encoding/base64"
)

// Payloads are texts of one size that no compression makes smaller: neither that of Postgres'
// large values nor that of Kafka's batches.
type Payloads []string

// NewPayloads returns more of them than a compression looks back upon.
func NewPayloads(bytes int) Payloads {
	const most, atLeast, together = 512, 4, 2 << 20
	payloads := make(Payloads, min(most, max(atLeast, together/max(1, bytes))))
	random := make([]byte, bytes)
	for i := range payloads {
		_, _ = rand.Read(random) // it never fails
		payloads[i] = base64.RawStdEncoding.EncodeToString(random)[:bytes]
	}
	return payloads
}

// Of is the payload of the message with that number.
func (p Payloads) Of(number int) string { return p[number%len(p)] }

package inbox

import (
	"crypto/sha256"
	"encoding/binary"
)

// Digest returns the SHA-256 of an event's content, for Key.Digest. Its input is the
// length of the destination in bytes (64 bits, big-endian), the destination, and the
// payload, so that no two pairs share one. It stays the same across versions of this
// module. Metadata is no part of it: redelivery and replay may change that.
func Digest(destination string, payload []byte) []byte {
	hash := sha256.New()
	hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(destination))))
	hash.Write([]byte(destination))
	hash.Write(payload)
	return hash.Sum(nil)
}

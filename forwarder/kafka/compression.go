package kafka

import "github.com/twmb/franz-go/pkg/kgo"

// Compression says how batches of records are compressed. Consumers find it in the
// batch: nothing is to be set there.
type Compression string

const (
	// NoCompression leaves batches as they are: any consumer reads them, whatever it was
	// built with, and max.message.bytes speaks of the size that a message has.
	NoCompression Compression = "none"
	// Gzip is understood by every client, and costs the most time.
	Gzip Compression = "gzip"
	// Snappy costs little time.
	Snappy Compression = "snappy"
	// LZ4 costs little time and is usually the better one of the quick ones.
	LZ4 Compression = "lz4"
	// Zstd compresses best. Brokers know it since Kafka 2.1; some builds of clients in
	// other languages do not.
	Zstd Compression = "zstd"
)

// codecs has all compressions there are.
var codecs = map[Compression]kgo.CompressionCodec{
	NoCompression: kgo.NoCompression(),
	Gzip:          kgo.GzipCompression(),
	Snappy:        kgo.SnappyCompression(),
	LZ4:           kgo.Lz4Compression(),
	Zstd:          kgo.ZstdCompression(),
}

package kafka

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/twmb/franz-go/pkg/kgo"
)

// metadataMinAge lets a new leader be found soon after an election.
const metadataMinAge = 250 * time.Millisecond

// recordRetries is how often the client library tries again where a partition has no
// leader, or too few replicas: for a second or two, as an election takes. Without a bound
// a batch would wait for that one topic, and the others' messages in it with it. What the
// broker may have written already is never given up by this bound.
const recordRetries = 5

// newClient leaves acks=all, idempotence and no creation of topics as they are by
// default. The time is bounded by the batch.
func (p *Publisher) newClient() (*kgo.Client, error) {
	options := append(p.config.securityOptions(),
		kgo.SeedBrokers(p.config.Brokers...),
		kgo.ClientID(p.config.ClientID),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0),                                      // a wave is complete when it is handed over
		kgo.ProducerBatchMaxBytes(int32(p.config.MaxMessageBytes)), //nolint:gosec // Validate bounds it
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(p.config.hasher())),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.RecordRetries(recordRetries),
		kgo.ProducerBatchCompression(codecs[p.config.Compression]),
		kgo.WithLogger(clientLogger{p.logger}),
	)
	return kgo.NewClient(options...) //nolint:wrapcheck // NewPublisher wraps it
}

// replace closes a client and puts a new one in its place, unless that has happened.
func (p *Publisher) replace(stale *kgo.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client != stale {
		return
	}
	stale.Close() // in any case: whoever waits for its answers waits for this
	fresh, err := p.newClient()
	if err != nil { // the same options worked before
		p.logger.Error("Kafka client could not be replaced, the next batch tries again", err, nil)
		return
	}
	p.client = fresh
}

// clientLogger hands on what the client library has to say, for those who look closely:
// what comes of it is reported with the batch.
type clientLogger struct{ logger watermill.LoggerAdapter }

func (clientLogger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l clientLogger) Log(_ kgo.LogLevel, msg string, keyvals ...any) {
	fields := watermill.LogFields{}
	for i := 0; i+1 < len(keyvals); i += 2 {
		if name, ok := keyvals[i].(string); ok {
			fields[name] = keyvals[i+1]
		}
	}
	l.logger.Debug("Kafka client: "+msg, fields)
}

package kafka

import (
	"fmt"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watermill-outbox/outbox/forwarder"
)

// record brings what watermill-kafka's marshaler makes of a message into the form of
// the client library. Its errors are refusals: permanent ones, but for the marshaler's own,
// which may ask a schema registry. A panic of a marshaler is the fault of that message.
func (p *Publisher) record(msg forwarder.Outgoing) (record *kgo.Record, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = forwarder.Refused(fmt.Errorf("marshal: panic: %v", r)) //nolint:err113 // what was thrown is no error of ours
		}
	}()
	marshalled, err := p.config.Marshaler.Marshal(msg.Destination, msg.Message)
	if err != nil {
		return nil, forwarder.Refused(fmt.Errorf("marshal: %w", err))
	}
	record = &kgo.Record{
		Topic:     msg.Destination,
		Key:       []byte(msg.PartitionKey),
		Timestamp: marshalled.Timestamp,
		Headers:   make([]kgo.RecordHeader, len(marshalled.Headers)),
	}
	if marshalled.Value != nil {
		if record.Value, err = marshalled.Value.Encode(); err != nil {
			return nil, forwarder.Refused(fmt.Errorf("encode: %w", err))
		}
	}
	if err := checkHeaders(marshalled.Headers); err != nil {
		return nil, forwarder.Permanent(err)
	}
	for i, header := range marshalled.Headers {
		record.Headers[i] = kgo.RecordHeader{Key: string(header.Key), Value: header.Value}
	}
	return record, nil
}

// checkHeaders finds a second header with an event id. watermill-kafka's marshaler lets
// a metadata value pass that is empty, and its subscriber would take that for the id.
func checkHeaders(headers []sarama.RecordHeader) error {
	ids := 0
	for _, header := range headers {
		if string(header.Key) == kafka.UUIDHeaderKey {
			ids++
		}
	}
	if ids > 1 {
		return fmt.Errorf("marshal: the metadata key %q is reserved for the event id", kafka.UUIDHeaderKey)
	}
	return nil
}

package kafka_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

// A broker may create what it is asked for (auto.create.topics.enable): each request
// forbids it.
func TestNoRequestCreatesTopicsUnasked(t *testing.T) {
	t.Parallel()
	topic := testkafka.TopicName(t)
	relay := newRelay(t)
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: []string{relay.listener.Addr().String()}}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	require.ErrorIs(t, publish(t, publisher, outgoing(topic, "a", "1", "x"))[0], forwarder.ErrDestinationUnavailable)
	named := 0
	for _, request := range relay.metadataRequests() {
		require.False(t, request.AllowAutoTopicCreation)
		for _, asked := range request.Topics {
			if asked.Topic != nil && *asked.Topic == topic {
				named++
			}
		}
	}
	require.Positive(t, named, "the relay saw the question for the topic")
	require.Zero(t, testkafka.Partitions(t, topic))
}

// relay stands before the test broker and reads what it is asked.
type relay struct {
	listener net.Listener

	mu       sync.Mutex
	requests []*kmsg.MetadataRequest
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{listener: listener}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() { r.serve(t, client) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		connections.Wait()
	})
	return r
}

func (r *relay) metadataRequests() []*kmsg.MetadataRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// serve ends when the client closes its connection.
func (r *relay) serve(t *testing.T, client net.Conn) {
	t.Helper()
	defer client.Close()
	var dialer net.Dialer
	broker, err := dialer.DialContext(t.Context(), "tcp", testkafka.Brokers()[0])
	if err != nil {
		t.Error(err)
		return
	}
	var answers sync.WaitGroup
	answers.Go(func() { _, _ = io.Copy(client, broker) })
	defer answers.Wait()
	defer broker.Close()
	for {
		frame, err := readFrame(client)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				t.Log(err)
			}
			return
		}
		if request := metadataRequest(frame[4:]); request != nil {
			r.mu.Lock()
			r.requests = append(r.requests, request)
			r.mu.Unlock()
		}
		if _, err := broker.Write(frame); err != nil {
			return
		}
	}
}

// readFrame reads a request with the length before it.
func readFrame(from io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, 4+binary.BigEndian.Uint32(length[:]))
	copy(frame, length[:])
	_, err := io.ReadFull(from, frame[4:])
	return frame, err
}

// metadataRequest returns nil for another request. It is preceded by its key, its version,
// a correlation id, the client's id, and in flexible versions by the number of tags, 0.
func metadataRequest(request []byte) *kmsg.MetadataRequest {
	metadata := kmsg.NewPtrMetadataRequest()
	if int16(binary.BigEndian.Uint16(request)) != metadata.Key() {
		return nil
	}
	metadata.Version = int16(binary.BigEndian.Uint16(request[2:]))
	body := request[10+binary.BigEndian.Uint16(request[8:]):]
	if metadata.IsFlexible() {
		body = body[1:]
	}
	if err := metadata.ReadFrom(body); err != nil {
		return nil
	}
	return metadata
}

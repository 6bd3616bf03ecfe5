package kafka_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watermill-outbox/outbox/forwarder"
	"github.com/watermill-outbox/outbox/forwarder/kafka"
	"github.com/watermill-outbox/outbox/internal/testkafka"
)

// A broker may fail to give a producer id through a fault of its own, which passes: the
// client library would remember that for ever.
func TestErrorOfTheBrokerIsNotRemembered(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 1)
	faulty := newFaultyBroker(t)
	faulty.spoil.Store(true)
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: []string{faulty.address.String()}}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	err = publish(t, publisher, outgoing(topic, "a", "1", "x"))[0]
	require.ErrorIs(t, err, forwarder.ErrUnavailable)
	require.ErrorIs(t, err, kerr.UnknownServerError)
	require.NoError(t, publish(t, publisher, outgoing(topic, "a", "1", "x"))[0])
	require.Len(t, testkafka.NewConsumer(t, topic).Take(t, 1), 1)
}

// Brokers before Kafka 2.8, and some that are none of Apache's, have no ids of topics, by
// which the client library would notice that a topic was made anew: it keeps the partitions
// that are gone.
func TestRecreatedTopicOfAnOldBroker(t *testing.T) {
	t.Parallel()
	topic := testkafka.NewTopic(t, 6)
	old := newFaultyBroker(t)
	old.versions = map[int16]int16{0: 8, 3: 9} // Produce, Metadata
	publisher, err := kafka.NewPublisher(kafka.Config{Brokers: []string{old.address.String()}}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close()) }()
	var msgs []forwarder.Outgoing
	for n := range 30 {
		msgs = append(msgs, outgoing(topic, fmt.Sprint(n), fmt.Sprint(n), "x"))
	}
	for _, err := range publish(t, publisher, msgs...) {
		require.NoError(t, err)
	}
	testkafka.DeleteTopic(t, topic)
	testkafka.CreateTopic(t, topic, 2)
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(publish(t, publisher, msgs...), func(err error) bool { return err != nil })
	}, 30*time.Second, 10*time.Millisecond)
}

// faultyBroker stands before the test broker and takes its name.
type faultyBroker struct {
	address *net.TCPAddr
	// spoil makes the next question for a producer id fail.
	spoil atomic.Bool
	// versions are the newest that it knows of some requests, by their keys.
	versions map[int16]int16
}

func newFaultyBroker(t *testing.T) *faultyBroker {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address, ok := listener.Addr().(*net.TCPAddr)
	require.True(t, ok)
	f := &faultyBroker{address: address}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() { f.serve(t, client) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		connections.Wait()
	})
	return f
}

// serve passes on one request and its answer after the other, until the client closes its
// connection.
func (f *faultyBroker) serve(t *testing.T, client net.Conn) {
	t.Helper()
	defer client.Close()
	var dialer net.Dialer
	broker, err := dialer.DialContext(t.Context(), "tcp", testkafka.Brokers()[0])
	if err != nil {
		t.Error(err)
		return
	}
	defer broker.Close()
	for {
		request, err := readFrame(client)
		if err != nil {
			return
		}
		if _, err := broker.Write(request); err != nil {
			return
		}
		answer, err := readFrame(broker)
		if err != nil {
			return
		}
		if _, err := client.Write(f.rewritten(t, request, answer)); err != nil {
			return
		}
	}
}

// rewritten reads an answer as the request says it is: its key and version are there, after
// the length.
func (f *faultyBroker) rewritten(t *testing.T, request, answer []byte) []byte {
	t.Helper()
	key, version := int16(binary.BigEndian.Uint16(request[4:])), int16(binary.BigEndian.Uint16(request[6:]))
	metadata, producerID, versions := kmsg.NewPtrMetadataResponse(), kmsg.NewPtrInitProducerIDResponse(), kmsg.NewPtrApiVersionsResponse()
	responses := map[int16]kmsg.Response{metadata.Key(): metadata, producerID.Key(): producerID, versions.Key(): versions}
	response := responses[key]
	errorCode := int16(binary.BigEndian.Uint16(answer[8:]))
	if response == nil || (response == versions && errorCode == kerr.UnsupportedVersion.Code) { // which is said in version 0
		return answer
	}
	response.SetVersion(version)
	header := 8 // length and correlation id
	if response.IsFlexible() && response != versions {
		header++ // no tags
	}
	if err := response.ReadFrom(answer[header:]); err != nil {
		t.Error(err)
		return answer
	}
	if key == producerID.Key() && f.spoil.CompareAndSwap(true, false) {
		producerID.ErrorCode = kerr.UnknownServerError.Code
	}
	for i := range metadata.Brokers {
		metadata.Brokers[i].Host, metadata.Brokers[i].Port = f.address.IP.String(), int32(f.address.Port)
	}
	for i, known := range versions.ApiKeys {
		if newest, ok := f.versions[known.ApiKey]; ok {
			versions.ApiKeys[i].MaxVersion = newest
		}
	}
	answer = response.AppendTo(answer[:header])
	binary.BigEndian.PutUint32(answer, uint32(len(answer)-4))
	return answer
}

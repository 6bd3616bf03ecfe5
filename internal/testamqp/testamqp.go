// Package testamqp gives each test queues and exchanges of its own on a real RabbitMQ.
package testamqp

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

const (
	defaultURI = "amqp://outbox:outbox@127.0.0.1:25673/"
	patience   = 30 * time.Second
)

// URI is the address of the test broker.
func URI() string {
	if uri := os.Getenv("AMQP_URI"); uri != "" {
		return uri
	}
	return defaultURI
}

// Name returns a name that no other test has. Nothing of that name exists yet.
func Name(t *testing.T) string {
	t.Helper()
	random := make([]byte, 6)
	_, err := rand.Read(random)
	require.NoError(t, err)
	return "test-" + hex.EncodeToString(random)
}

// Channel opens a channel on a connection of its own that is closed after the test. It
// fails the test where no broker answers: start one with "make services".
func Channel(t *testing.T) *amqp091.Channel {
	t.Helper()
	connection, err := amqp091.Dial(URI())
	require.NoError(t, err, "no RabbitMQ: run \"make services\", or set AMQP_URI")
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	require.NoError(t, err)
	return channel
}

// NewQueue declares a durable queue that is deleted after the test.
func NewQueue(t *testing.T, arguments amqp091.Table) string {
	t.Helper()
	name := Name(t)
	DeclareQueue(t, name, arguments)
	return name
}

// DeclareQueue is NewQueue with a given name.
func DeclareQueue(t *testing.T, name string, arguments amqp091.Table) {
	t.Helper()
	_, err := Channel(t).QueueDeclare(name, true, false, false, false, arguments)
	require.NoError(t, err)
	DeleteQueueAfter(t, name)
}

// DeleteQueueAfter deletes a queue after the test, whoever declared it.
func DeleteQueueAfter(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() { DeleteQueue(t, name) })
}

// DeleteQueue deletes a queue if it exists.
func DeleteQueue(t *testing.T, name string) {
	t.Helper()
	connection, err := amqp091.Dial(URI())
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)
	_, err = channel.QueueDelete(name, false, false, false)
	require.NoError(t, err)
}

// DeleteExchangeAfter deletes an exchange after the test, whoever declared it.
func DeleteExchangeAfter(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		connection, err := amqp091.Dial(URI())
		require.NoError(t, err)
		defer connection.Close()
		channel, err := connection.Channel()
		require.NoError(t, err)
		require.NoError(t, channel.ExchangeDelete(name, false, false))
	})
}

// Take waits for the next n messages of a queue, in order, and acks them.
func Take(t *testing.T, queue string, n int) []amqp091.Delivery {
	t.Helper()
	channel := Channel(t)
	taken := []amqp091.Delivery{}
	require.Eventually(t, func() bool {
		for len(taken) < n {
			delivery, ok, err := channel.Get(queue, true)
			if err != nil || !ok {
				return false
			}
			taken = append(taken, delivery)
		}
		return true
	}, patience, 5*time.Millisecond, "%d messages in queue %s", n, queue)
	return taken
}

// Length is how many messages wait in a queue.
func Length(t *testing.T, queue string) int {
	t.Helper()
	connection, err := amqp091.Dial(URI())
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)
	found, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return found.Messages
}

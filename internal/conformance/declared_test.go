package conformance_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

// declared notes the queues and exchanges that a test's subscribers declare, to delete
// them after the test.
type declared struct{ queues, exchanges sync.Map }

func newDeclared(t *testing.T, uri string) *declared {
	t.Helper()
	d := &declared{}
	t.Cleanup(func() { assert.NoError(t, d.delete(uri)) })
	return d
}

func (d *declared) delete(uri string) error {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	for name := range d.queues.Range {
		_, deleteErr := channel.QueueDelete(name.(string), false, false, false)
		err = errors.Join(err, deleteErr)
	}
	for name := range d.exchanges.Range {
		if name != "" { // the default exchange
			err = errors.Join(err, channel.ExchangeDelete(name.(string), false, false))
		}
	}
	return err
}

// noting is generate, but for that it notes what generate returns.
func (d *declared) noting(names *sync.Map, generate func(topic string) string) func(topic string) string {
	return func(topic string) string {
		name := generate(topic)
		names.Store(name, nil)
		return name
	}
}

package amqp

import (
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// maxUnconfirmed is how many messages go out on a channel before their confirmations
// are waited for. There is room for as many returned messages: the client library drops
// what finds no room, and a returned message would pass for a confirmed one.
const maxUnconfirmed = 1000

// channel is a channel in confirm mode that serves one outlet.
type channel struct {
	outlet

	config Config
	logger watermill.LoggerAdapter

	amqp    *amqp091.Channel
	returns chan amqp091.Return
	closes  chan *amqp091.Error
	// abandoned stops a sender whose messages are not waited for any more.
	abandoned atomic.Bool
}

// openChannel opens a channel and declares the topology, as watermill-amqp does before
// its first publish to a topic.
func openChannel(conn *connection, to outlet) (*channel, error) {
	opened, err := conn.amqp.Channel()
	if err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	ch := &channel{
		outlet:  to,
		config:  conn.config,
		logger:  conn.logger,
		amqp:    opened,
		returns: opened.NotifyReturn(make(chan amqp091.Return, maxUnconfirmed)),
		closes:  opened.NotifyClose(make(chan *amqp091.Error, 1)),
	}
	prepared := false
	defer func() {
		if !prepared { // or a panic in the configuration's code
			ch.close()
		}
	}()
	if err := ch.prepare(); err != nil {
		return nil, err
	}
	prepared = true
	return ch, nil
}

func (ch *channel) prepare() error {
	if err := ch.amqp.Confirm(false); err != nil {
		return fmt.Errorf("turn confirms on: %w", err)
	}
	settings := ch.config.AMQP
	if ch.config.DeclareQueues {
		queue := settings.Queue.GenerateName(ch.destination)
		if err := settings.TopologyBuilder.BuildTopology(ch.amqp, queue, ch.exchange, settings, ch.logger); err != nil {
			return fmt.Errorf("declare queue %q (%s): %w", queue, queueType(settings.Queue.Arguments), explained(err))
		}
		return nil
	}
	if ch.exchange == "" || !ch.config.declaresExchanges() {
		return nil
	}
	if err := settings.TopologyBuilder.ExchangeDeclare(ch.amqp, ch.exchange, settings); err != nil {
		return fmt.Errorf("declare exchange %q (%s): %w", ch.exchange, settings.Exchange.Type, explained(err))
	}
	return nil
}

func (ch *channel) close() {
	if err := ch.amqp.Close(); err != nil {
		ch.logger.Debug("Channel was closed already", watermill.LogFields{"destination": ch.destination})
	}
}

// closeReason says why the broker closed the channel, nil if it is open.
func (ch *channel) closeReason() error {
	select {
	case reason, ok := <-ch.closes:
		if ok && reason != nil {
			return reason
		}
		return amqp091.ErrClosed
	default:
		return nil
	}
}
